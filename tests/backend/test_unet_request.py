"""Clients may reach Triton directly: every input is checked again, and refused in words that name it."""

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from backend.unet.request import Segmentation, parse
from common.errors import InvalidRequest, NeverFits
from common.sections import Unet
from tests.backend.unet_kit import lease, limits, noise

SETTINGS = Unet(threshold=0.4)


def strings(*values: bytes) -> NDArray[np.object_]:
    return np.array(values, dtype=np.object_)


def png(width: int = 40, height: int = 30) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (width, height)).save(stream, "PNG")
    return stream.getvalue()


def read(classes: int = 1, **inputs: Any) -> Segmentation:
    return parse(inputs, lease(), limits(classes), SETTINGS)


def test_a_raw_image_is_copied_since_tritons_buffer_goes_away() -> None:
    image = noise(30, 40)
    parsed = read(image=image)
    assert (parsed.height, parsed.width, parsed.threshold, parsed.encoded) == (30, 40, SETTINGS.threshold, None)
    before = image.copy()
    image[:] = 0
    assert parsed.image is not None
    np.testing.assert_array_equal(parsed.image, before)


def test_an_encoded_image_is_measured_but_not_decoded() -> None:
    parsed = read(encoded=strings(png()))
    assert (parsed.height, parsed.width, parsed.image) == (30, 40, None)
    assert parsed.encoded == png()


def test_the_callers_threshold_beats_the_setting() -> None:
    parsed = read(image=noise(3, 3), threshold=np.array([0.25], np.float32))
    assert parsed.threshold == 0.25


@pytest.mark.parametrize(
    ("inputs", "param"),
    [
        ({}, "image"),
        ({"image": noise(3, 3), "encoded": strings(png())}, "image"),
        ({"image": noise(3, 3).astype(np.float32)}, "image"),
        ({"image": np.full((3, 3, 3), np.nan, np.float32)}, "image"),
        ({"image": noise(3, 3)[:, :, 0]}, "image"),
        ({"image": noise(3, 3)[:, :, :2]}, "image"),
        ({"image": noise(3, 3)[None]}, "image"),
        ({"image": np.zeros((0, 3, 3), np.uint8)}, "image"),
        ({"image": np.zeros((3, 0, 3), np.uint8)}, "image"),
        ({"encoded": strings()}, "encoded"),
        ({"encoded": strings(png(), png())}, "encoded"),
        ({"encoded": np.zeros(5, np.uint8)}, "encoded"),
        ({"encoded": strings(b"no image")}, "image"),
        ({"image": noise(3, 3), "threshold": np.array([0.5, 0.5], np.float32)}, "threshold"),
        ({"image": noise(3, 3), "threshold": np.array([1], np.int32)}, "threshold"),
    ],
)
def test_what_is_wrong_is_named(inputs: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(**inputs)
    assert refusal.value.param == param


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 7.0, np.nan, np.inf, -np.inf])
def test_thresholds_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(InvalidRequest, match="threshold"):
        read(image=noise(3, 3), threshold=np.array([value], np.float32))


def test_a_threshold_means_nothing_to_several_classes() -> None:
    with pytest.raises(InvalidRequest, match="several classes"):
        read(classes=3, image=noise(3, 3), threshold=np.array([0.5], np.float32))


def test_too_many_pixels_are_refused_with_both_numbers() -> None:
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (20_000, 20_000, 3), (0, 0, 0))
    for inputs in ({"image": huge}, {"encoded": strings(png(20_000, 5_001))}):
        with pytest.raises(NeverFits) as refusal:
            read(**inputs)
        assert refusal.value.numbers["max_pixels"] == limits().max_pixels
        assert refusal.value.numbers["pixels"] > limits().max_pixels
