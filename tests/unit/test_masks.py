import io
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from PIL import Image

from frontend import masks

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12)
MEMBERS = hnp.arrays(np.bool_, SHAPES)
LABELS = hnp.arrays(np.uint8, SHAPES, elements=st.integers(0, 3))


def from_rle(rle: dict[str, Any]) -> NDArray[np.bool_]:
    """Decodes as COCO defines it: runs outside, inside, outside, … in column-major order."""
    values = np.arange(len(rle["counts"])) % 2 == 1
    return np.repeat(values, rle["counts"]).reshape(rle["size"], order="F")


def open_png(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    assert image.format == "PNG"
    return image


@given(MEMBERS)
def test_run_lengths_are_exact(members: NDArray[np.bool_]) -> None:
    rle = masks.to_rle(members)
    np.testing.assert_array_equal(from_rle(rle), members)
    assert sum(rle["counts"]) == members.size
    assert all(count > 0 for count in rle["counts"][1:])


def test_run_lengths_run_down_the_columns() -> None:
    members = np.array([[False, True, True], [False, True, False]])
    assert masks.to_rle(members) == {"size": [2, 3], "counts": [2, 3, 1]}
    assert masks.to_rle(~members) == {"size": [2, 3], "counts": [0, 2, 3, 1]}


@given(MEMBERS)
def test_png_of_one_class_is_black_and_white(members: NDArray[np.bool_]) -> None:
    image = open_png(masks.to_png(members.astype(np.uint8), classes=1))
    assert image.mode == "L"
    np.testing.assert_array_equal(np.asarray(image), np.where(members, 255, 0))


@given(LABELS)
def test_png_of_many_classes_keeps_the_indices_in_8_bits(labels: masks.Mask) -> None:
    data = masks.to_png(labels, classes=4)
    image = open_png(data)
    assert image.mode == "P"
    assert data[24] == 8, "bit depth in the PNG header"
    np.testing.assert_array_equal(np.asarray(image), labels)
    np.testing.assert_array_equal(np.asarray(image.convert("RGB")), masks.palette()[labels])


@given(LABELS)
def test_areas_count_every_pixel_once(labels: masks.Mask) -> None:
    counted = masks.areas(labels)
    assert counted.shape == (256,)
    assert [counted[index] for index in range(4)] == [(labels == index).sum() for index in range(4)]


def test_palette_has_no_colour_twice_among_the_first_classes() -> None:
    assert len({tuple(colour) for colour in masks.palette()[:20].tolist()}) == 20


@given(LABELS)
def test_overlay_leaves_the_background_and_outlines_the_classes(labels: masks.Mask) -> None:
    picture = np.full((*labels.shape, 3), 100, np.uint8)
    painted = np.asarray(open_png(masks.to_overlay(picture.copy(), labels)))
    padded = np.pad(labels, 1, mode="edge")
    neighbours = np.stack([padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:]])
    border = (labels > 0) & (neighbours != labels).any(axis=0)
    np.testing.assert_array_equal(painted[labels == 0], picture[labels == 0])
    np.testing.assert_array_equal(painted[border], masks.palette()[labels][border])
    inside = (labels > 0) & ~border
    tinted = 0.6 * 100 + 0.4 * masks.palette()[labels][inside]
    assert np.abs(painted[inside] - tinted).max(initial=0) <= 1


def test_overlay_is_the_same_wherever_a_band_of_rows_ends() -> None:
    labels = np.zeros((700, 3), np.uint8)
    labels[200:600, 1] = 1
    painted = np.asarray(open_png(masks.to_overlay(np.zeros((700, 3, 3), np.uint8), labels)))
    colour = masks.palette()[1]
    assert (painted[200:600, 1] == colour).all(), "a column one pixel wide is all outline"
    labels[:] = 1
    painted = np.asarray(open_png(masks.to_overlay(np.zeros((700, 3, 3), np.uint8), labels)))
    assert not (painted == colour).all(axis=-1).any(), "a full mask has no outline, at bands neither"
