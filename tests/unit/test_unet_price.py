"""The UNet's arithmetic: tiles cover every pixel, prices are exact and monotone, the inverse gives the money back."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.wire import HOST, UNET_CANVAS, UnetLimits
from estimator.unet import (
    TileGrid,
    UnetShape,
    canvas_bytes,
    grid,
    price_request,
    standing,
    strip_bytes,
    strips_in,
    tile_batch_bytes,
    weights_bytes,
)

LENGTHS = st.integers(1, 5000)
TILES = st.sampled_from([32, 64, 256, 512])


def limits(tile_pixels: int = 256, classes: int = 1) -> UnetLimits:
    return UnetLimits(
        classes=classes,
        class_names=("nucleus",),
        tile_pixels=tile_pixels,
        overlap_pixels=tile_pixels // 4,
        canvas_bytes=2**28,
        canvas_itemsize=2,
        max_pixels=10**8,
        default_threshold=0.5,
    )


@given(LENGTHS, LENGTHS, TILES)
def test_tiles_cover_the_image_and_none_is_superfluous(height: int, width: int, tile: int) -> None:
    tiles = TileGrid(height, width, tile, tile // 4)
    bottom, right = (corner + tile for corner in tiles.origin(tiles.tiles - 1))
    assert bottom >= height
    assert right >= width
    if tiles.rows > 1:
        assert bottom - tiles.overlap_pixels < height
    if tiles.columns > 1:
        assert right - tiles.overlap_pixels < width
    fewest = [max(1, -(-(length - tile // 4) // (tile - tile // 4))) for length in (height, width)]
    assert [tiles.rows, tiles.columns] == fewest


@given(LENGTHS, LENGTHS, TILES)
def test_a_tile_shares_with_its_neighbours_what_it_says_and_nothing_with_others(
    height: int, width: int, tile: int
) -> None:
    tiles = TileGrid(height, width, tile, tile // 4)
    left = [tiles.origin(column)[1] for column in range(tiles.columns)]
    for column, (near, following) in enumerate(pairwise(left)):
        shared = near + tile - following
        assert 1 <= shared / tiles.overlap_pixels <= 3
        assert tiles.shared(column)[1][1] == tiles.shared(column + 1)[1][0] == shared // tiles.overlap_pixels
    assert all(near + tile <= following for near, following in zip(left, left[2:], strict=False))
    assert tiles.shared(0)[1][0] == tiles.shared(tiles.columns - 1)[1][1] == 0


@given(LENGTHS, LENGTHS, TILES)
def test_finished_rows_follow_one_another_and_are_all_rows(height: int, width: int, tile: int) -> None:
    tiles = TileGrid(height, width, tile, tile // 4)
    rows = [row for index in range(tiles.rows) for row in tiles.finished_rows(index)]
    assert rows == list(range(height))


@given(LENGTHS, LENGTHS, TILES)
def test_strips_hold_the_last_column_of_tiles_exactly(height: int, width: int, tile: int) -> None:
    tiles = TileGrid(height, width, tile, tile // 4)
    if tiles.is_single:
        assert tiles.strips == 0
        assert max(height, width) <= tile
    else:
        assert tiles.strips * tiles.overlap_pixels == tiles.origin(tiles.columns - 1)[1] + tile


def test_worked_example_of_the_module() -> None:
    price = price_request(limits(512), 9000, 12000, encoded_bytes=0, probabilities=False)
    assert price.by_account()[UNET_CANVAS] == 94 * 131_072


def test_a_hundred_thousand_by_one_costs_by_its_width() -> None:
    strip = strip_bytes(1, 256, 64)
    assert canvas_bytes(1, 100_000, limits()) == -(-100_000 // 64) * strip
    assert canvas_bytes(100_000, 1, limits()) == 4 * strip


@given(LENGTHS, LENGTHS, st.integers(1, 20))
def test_canvas_grows_with_width_and_classes_but_not_with_height(height: int, width: int, classes: int) -> None:
    base = canvas_bytes(height, width, limits(classes=classes))
    assert canvas_bytes(height, width + 1, limits(classes=classes)) >= base
    assert canvas_bytes(height, width, limits(classes=classes + 1)) >= base
    if height > 256:
        assert canvas_bytes(height + 1000, width, limits(classes=classes)) == base


def test_one_tile_costs_no_canvas_and_is_paid_on_the_host_only() -> None:
    price = price_request(limits(), 256, 256, encoded_bytes=1000, probabilities=False)
    assert price.by_account() == {HOST: 1000 + 256 * 256 * (4 + 3 + 1)}


def test_probabilities_cost_four_bytes_a_class_and_pixel_on_the_host() -> None:
    without = price_request(limits(classes=3), 300, 200, encoded_bytes=0, probabilities=False)
    with_them = price_request(limits(classes=3), 300, 200, encoded_bytes=0, probabilities=True)
    assert with_them.by_account()[HOST] - without.by_account()[HOST] == 3 * 300 * 200 * 4
    assert with_them.by_account()[UNET_CANVAS] == without.by_account()[UNET_CANVAS]


@given(st.integers(0, 10**9), st.integers(1, 20), TILES)
def test_strips_in_a_pool_are_the_inverse_of_the_price(pool_bytes: int, classes: int, tile: int) -> None:
    strips = strips_in(pool_bytes, classes, tile, tile // 4)
    one = strip_bytes(classes, tile, tile // 4)
    assert strips * one <= pool_bytes < (strips + 1) * one


def test_weights_are_those_of_the_true_resnet50_unet() -> None:
    """32.52 M parameters with batch normalisation, of which folding keeps one bias instead of a scale and a shift."""
    parameters = weights_bytes(UnetShape(width=64, classes=1), "float16") // 2
    assert parameters == pytest.approx(32_521_105, rel=2e-3)


def test_a_batch_costs_what_was_measured_on_the_card() -> None:
    """600 MiB in float32 per 1024 x 1024 pixels at width 64, beside the tiles themselves."""
    measured_bytes = 600 * 2**20
    assert tile_batch_bytes(UnetShape(64, 2), 1024, 1, "float32") == pytest.approx(measured_bytes, rel=0.05)


def test_standing_is_the_sum_of_its_parts() -> None:
    price = standing(UnetShape(16, 1), "float32", 256, 4, canvas_bytes=2**20)
    assert price.total_bytes == sum(line.bytes for line in price.lines)
    assert {line.account for line in price.lines} == {"unet.grant"}
    assert len(price.lines) == 5


@pytest.mark.parametrize(("height", "width"), [(0, 5), (5, 0), (-1, 5)])
def test_no_image_without_pixels(height: int, width: int) -> None:
    with pytest.raises(ValueError, match="no tiling"):
        grid(limits(), height, width)
