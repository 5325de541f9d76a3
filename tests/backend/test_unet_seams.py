"""Tiles against the whole image, with the shipped weights.

They cannot agree everywhere: the network sees further than a tile. What can be asked is that few pixels differ, and
that the seams do not stand out.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from backend.unet.engine import UnetEngine
from backend.unet.load import open_network, open_runner
from backend.unet.train import predict
from common.settings import Settings
from estimator.unet import TileGrid, grid
from tests.backend.unet_kit import Recorder, request

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "dsb2018_nuclei_256.npz"
QUARTERS = (
    (11, 481, 221, 77),
    (75, 402, 395, 97),
    (131, 428, 145, 534),
    (285, 279, 207, 575),
    (410, 18, 25, 32),
    (589, 183, 542, 477),
)
"""Images of the data set that are quarters of one field of view: upper left and right, lower left and right."""

Image = NDArray[np.uint8]


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


def differences(engine: UnetEngine, image: Image) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Where tiles and whole image disagree, and which pixels lie in two tiles or more."""
    outlet = Recorder()
    engine.submit(request(image), outlet)
    whole = predict(open_network(Settings()), image[None])[0] > 0.5
    tiles = grid(engine.limits, *image.shape[:2])
    return (outlet.mask != whole), _overlaps(tiles)


def _overlaps(tiles: TileGrid) -> NDArray[np.bool_]:
    seams = np.zeros((tiles.height, tiles.width), bool)
    for row in range(1, tiles.rows):
        seams[row * tiles.stride_pixels :][: tiles.overlap_pixels] = True
    for column in range(1, tiles.columns):
        seams[:, column * tiles.stride_pixels :][:, : tiles.overlap_pixels] = True
    return seams


def test_synthetic_nuclei_come_out_alike(engine: UnetEngine) -> None:
    differ, seams = differences(engine, synthetic_nuclei(500, 700))
    assert differ.mean() <= 0.005
    assert differ[seams].mean() <= 0.005


@pytest.mark.skipif(not DATA.is_file(), reason=f"the data set is not there: {DATA}")
def test_real_fields_of_view_come_out_alike(engine: UnetEngine) -> None:
    with np.load(DATA) as data:
        images = data["X"]
    fields = [np.vstack([np.hstack(images[[a, b]]), np.hstack(images[[c, d]])]) for a, b, c, d in QUARTERS]
    differ, seams = (np.stack(maps) for maps in zip(*(differences(engine, field) for field in fields), strict=True))
    assert differ.mean() <= 0.005
    assert differ[seams].mean() <= 1.5 * differ[~seams].mean()


def test_an_image_that_fits_one_tile_is_exactly_the_whole_image(engine: UnetEngine) -> None:
    differ, seams = differences(engine, synthetic_nuclei(256, 256))
    assert not seams.any()
    assert not differ.any()
