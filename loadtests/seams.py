"""How far masks that are put together from tiles are those of the whole image at once, near the seams and elsewhere."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.unet.engine import UnetEngine
from backend.unet.load import open_network
from backend.unet.train import predict
from common.settings import Settings
from estimator.unet import TileGrid, grid
from loadtests import unet_driver

QUARTERS = (
    (11, 481, 221, 77),
    (75, 402, 395, 97),
    (131, 428, 145, 534),
    (285, 279, 207, 575),
    (410, 18, 25, 32),
    (589, 183, 542, 477),
)
"""Images of the nuclei data that are quarters of one field of view: upper left and right, lower left and right."""
NEAR_PIXELS = 16
"""So close to the middle of what two tiles share is near a seam."""

Image = NDArray[np.uint8]
Where = NDArray[np.bool_]


def fields(data: Path, edge: int) -> list[Image]:
    """Real fields of view of 512 x 512 pixels, continued by reflection or cut to `edge` x `edge`."""
    with np.load(data) as arrays:
        images = arrays["X"]
    whole = [np.vstack([np.hstack(images[[a, b]]), np.hstack(images[[c, d]])]) for a, b, c, d in QUARTERS]
    beyond = max(0, edge - len(whole[0]))
    return [np.pad(field, ((0, beyond), (0, beyond), (0, 0)), "symmetric")[:edge, :edge] for field in whole]


def rows(engine: UnetEngine, data: Path) -> Iterator[dict[str, Any]]:
    """Measurements over fields of two, three and a quarter, and nearly four tiles; only the last leaves a remainder."""
    tile = engine.limits.tile_pixels
    for edge in (2 * tile, 13 * tile // 4, 4 * tile - 24):
        about = {"what": "tiles against the whole image", "device": engine.device, "edge": edge}
        yield about | shares(engine, fields(data, edge))


def compare(engine: UnetEngine, image: Image) -> tuple[Where, Where]:
    """Which pixels the engine's mask of `image` has different from the demo model's on the whole, and which are near
    seams."""
    ((mask, _),) = unet_driver.together(engine, [image])
    whole = predict(open_network(Settings()), image[None])[0] > 0.5
    return mask != whole, near_seams(grid(engine.limits, *image.shape[:2]))


def near_seams(tiles: TileGrid) -> Where:
    """[H, W]: within NEAR_PIXELS of the middle of what two neighbouring tiles share."""
    near = np.zeros((tiles.height, tiles.width), np.bool_)
    for tile in range(tiles.tiles):
        for axis, (start, (shared, _)) in enumerate(zip(tiles.origin(tile), tiles.shared(tile), strict=True)):
            middle = start + shared * tiles.overlap_pixels // 2
            if shared:
                np.moveaxis(near, axis, 0)[middle - NEAR_PIXELS : middle + NEAR_PIXELS] = True
    return near


def shares(engine: UnetEngine, images: Sequence[Image]) -> dict[str, float]:
    """Shares of mask pixels that differ: of all, of those near seams, of the others."""
    differ, near = (np.stack(maps) for maps in zip(*(compare(engine, image) for image in images), strict=True))
    others = differ[~near]
    return {
        "all": float(differ.mean()),
        "near_seams": float(differ[near].mean()) if near.any() else 0.0,
        "elsewhere": float(others.mean()),
    }
