"""Tiles against the whole image, with the shipped weights.

They cannot agree everywhere: the network sees further than a tile. What can be asked is that few pixels differ, near
the seams as well.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from backend.unet.engine import UnetEngine
from backend.unet.load import open_runner
from common.settings import Settings
from estimator.unet import TileGrid
from loadtests.nuclei import DATA
from loadtests.seams import Image, compare, fields, near_seams, shares

needs_data = pytest.mark.skipif(not DATA.is_file(), reason=f"the data set is not there: {DATA}")


@pytest.fixture(scope="module")
def engine() -> Iterator[UnetEngine]:
    settings = Settings()
    started = UnetEngine(open_runner(settings, torch.device("cpu")), settings.unet)
    started.start()
    yield started
    started.close()


def synthetic_nuclei(height: int, width: int) -> Image:
    """Bright ellipses with soft edges and some noise on a dark ground."""
    random = np.random.default_rng(3)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    picture = np.full((height, width), 12, np.float32)
    for _ in range(height * width // 1500):
        cy, cx, a, b, turn = random.uniform((0, 0, 6, 6, 0), (height, width, 13, 13, 3.14))
        u, v = (x - cx) * np.cos(turn) + (y - cy) * np.sin(turn), (y - cy) * np.cos(turn) - (x - cx) * np.sin(turn)
        inside = 1 / (1 + np.exp(np.minimum(12 * (np.hypot(u / a, v / b) - 1), 80)))
        picture = np.maximum(picture, 12 + random.uniform(60, 120) * inside)
    noisy = picture + random.normal(0, 2, picture.shape)
    return np.repeat(noisy.clip(0, 255).astype(np.uint8)[:, :, None], 3, axis=2)


def test_synthetic_nuclei_come_out_alike(engine: UnetEngine) -> None:
    found = shares(engine, [synthetic_nuclei(500, 700)])
    assert found["all"] <= 0.002
    assert found["near_seams"] <= 0.003


@needs_data
def test_real_fields_of_view_come_out_alike(engine: UnetEngine) -> None:
    found = shares(engine, fields(DATA, 512))
    assert found["all"] <= 0.0015
    assert found["near_seams"] <= 0.0025


@needs_data
def test_a_size_that_tiles_do_not_divide_comes_out_alike(engine: UnetEngine) -> None:
    found = shares(engine, fields(DATA, 490)[:3])
    assert found["all"] <= 0.005
    assert found["near_seams"] <= 0.005


def test_an_image_that_fits_one_tile_is_exactly_the_whole_image(engine: UnetEngine) -> None:
    differ, near = compare(engine, synthetic_nuclei(256, 256))
    assert not near.any()
    assert not differ.any()


def test_seams_are_where_tiles_share_pixels() -> None:
    near = near_seams(TileGrid(300, 448, 256, 64))
    assert near[:, 208:240].all()
    assert near[144:176].all()
    assert not near[:144, :208].any()
    assert np.count_nonzero(near) == 300 * 32 + 448 * 32 - 32 * 32
