"""Tiles cover what they should, mirrored at the edges; blending weights add up; canvases cost what they are priced."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.unet.canvas import Canvas, StripPool
from backend.unet.tiles import blend_weights, cut, reflect
from backend.unet.workspace import Workspace
from estimator.unet import STAGED_STRIPS, TileGrid, canvas_bytes, grid
from tests.backend.unet_kit import TILE, limits, noise

CPU = torch.device("cpu")
OVERLAP = TILE // 4
SIZES = st.integers(1, 150)


@given(st.integers(1, 40), st.integers(0, 100), st.integers(1, 100))
def test_reflection_is_that_of_numpy_for_any_length(length: int, start: int, count: int) -> None:
    axis = np.arange(length)
    padded = np.pad(axis, (0, start + count), mode="reflect") if length > 1 else np.zeros(start + count + 1, int)
    np.testing.assert_array_equal(axis[reflect(start, start + count, length)], padded[start : start + count])


@given(SIZES, SIZES)
@settings(max_examples=50)
def test_every_tile_is_a_window_of_the_image_continued_by_reflection(height: int, width: int) -> None:
    image = noise(height, width)
    tiles = TileGrid(height, width, TILE, OVERLAP)
    rows, columns = reflect(0, height + 2 * TILE, height), reflect(0, width + 2 * TILE, width)
    endless = image[rows[:, None], columns]
    for tile in range(tiles.tiles):
        out = np.empty((TILE, TILE, 3), np.uint8)
        cut(image, tiles, tile, out)
        top, left = tiles.origin(tile)
        np.testing.assert_array_equal(out, endless[top : top + TILE, left : left + TILE])


@pytest.mark.parametrize("tile", [32, 256, 512])
@pytest.mark.parametrize("shared", [1, 2, 3])
def test_blend_weights_of_neighbours_add_up_to_one_where_they_overlap(tile: int, shared: int) -> None:
    weights = blend_weights(tile, tile // 4).float()
    overlap = shared * tile // 4
    both = weights[0, shared, -overlap:] + weights[shared, 0, :overlap]
    torch.testing.assert_close(both, torch.ones(overlap), rtol=0, atol=1e-3)
    assert (weights[0, shared, :-overlap] == 1).all()
    assert (weights[0, 0] == 1).all()
    torch.testing.assert_close(weights, weights.transpose(0, 1).flip(2))


def test_a_tile_counts_for_nothing_at_its_own_edge_where_it_has_a_neighbour() -> None:
    weights = blend_weights(256, 64)
    assert weights[1, 1, 0] < 0.01
    assert (weights[2, 0, :32] == 0).all()
    assert (weights[3, 0, :64] == 0).all()
    assert weights[0, 1, 0] == 1


@given(SIZES, SIZES, st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_a_canvas_hands_out_every_pixel_once_and_blends_to_one(height: int, width: int, classes: int) -> None:
    tiles = TileGrid(height, width, TILE, OVERLAP)
    if tiles.is_single:
        return
    pool, workspace = StripPool(limits(classes), CPU), Workspace(limits(classes), CPU)
    canvas = Canvas(tiles, pool)
    total = torch.zeros(classes, height, width + TILE * 4)
    seen = torch.zeros(height, width + TILE * 4)
    for tile in range(tiles.tiles):
        canvas.add(tile, torch.ones(classes, TILE, TILE, dtype=torch.half))
        for piece in canvas.finish(tile, workspace):
            logits = piece.logits.permute(1, 2, 0, 3).flatten(2)
            part = np.s_[piece.rows.start : piece.rows.stop, piece.column : piece.column + logits.shape[2]]
            seen[part] += 1
            total[(slice(None), *part)] = logits.float()
    assert (seen[:, :width] == 1).all()
    torch.testing.assert_close(total[:, :, :width], torch.ones(classes, height, width), rtol=0, atol=5e-3)
    canvas.close()
    assert pool.free == pool.strips


@pytest.mark.parametrize("columns", [1, 10, 11, 12, 22])
def test_images_wider_than_one_staging_step_lose_no_column(columns: int) -> None:
    """One, or two steps of strips, the last of them all padding or nearly so."""
    width = columns * (TILE - OVERLAP) + OVERLAP - 20
    tiles = TileGrid(TILE + 1, width, TILE, OVERLAP)
    canvas, workspace = Canvas(tiles, StripPool(limits(strips=80), CPU)), Workspace(limits(), CPU)
    spans = []
    for tile in range(tiles.tiles):
        canvas.add(tile, torch.ones(1, TILE, TILE, dtype=torch.half))
        spans += [(p.column, len(p.logits) * OVERLAP) for p in canvas.finish(tile, workspace)]
    one_row = spans[: len(spans) // 2]
    assert [start for start, _ in one_row] == [n * STAGED_STRIPS * OVERLAP for n in range(len(one_row))]
    assert sum(span for _, span in one_row) == tiles.strips * OVERLAP


@given(SIZES, SIZES, st.integers(1, 4))
@settings(max_examples=50)
def test_a_canvas_holds_exactly_its_price(height: int, width: int, classes: int) -> None:
    bounds = limits(classes)
    tiles = grid(bounds, height, width)
    pool = StripPool(bounds, CPU)
    canvas = Canvas(tiles, pool)
    assert canvas.held_bytes == pool.used_bytes == canvas_bytes(height, width, bounds)
    held = pool.logits[: tiles.strips]
    assert held.numel() * held.element_size() == canvas.held_bytes


def test_a_pool_takes_exactly_the_bytes_of_the_account() -> None:
    bounds = limits(classes=3, strips=7)
    pool = StripPool(bounds, CPU)
    assert pool.logits.numel() * pool.logits.element_size() == bounds.canvas_bytes


def test_strips_come_back_clean_and_closing_twice_gives_nothing_twice() -> None:
    tiles = TileGrid(40, 40, TILE, OVERLAP)
    pool = StripPool(limits(strips=tiles.strips), CPU)
    first = Canvas(tiles, pool)
    first.add(0, torch.ones(1, TILE, TILE, dtype=torch.half))
    first.close()
    first.close()
    assert pool.free == tiles.strips
    Canvas(tiles, pool)
    assert (pool.logits == 0).all()


def test_more_strips_than_there_are_is_a_fault_of_the_caller() -> None:
    pool = StripPool(limits(strips=2), CPU)
    with pytest.raises(ValueError, match="3 strips asked of 2"):
        pool.take(3)
