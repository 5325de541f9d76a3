"""Tiles of an image: cutting them out, and the weights with which neighbours are blended."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from estimator.unet import TileGrid


def cut(image: NDArray[np.uint8], grid: TileGrid, tile: int, out: NDArray[np.uint8]) -> None:
    """Copies a tile of `image` [H, W, 3] into `out` [T, T, 3]; beyond the edge the image is continued by reflection."""
    top, left = grid.origin(tile)
    bottom, right = top + grid.tile_pixels, left + grid.tile_pixels
    if bottom <= grid.height and right <= grid.width:
        out[:] = image[top:bottom, left:right]
        return
    rows, columns = reflect(top, bottom, grid.height), reflect(left, right, grid.width)
    out[:] = image[rows[:, None], columns]


def reflect(start: int, stop: int, length: int) -> NDArray[np.intp]:
    """Indices into an axis of `length` for positions start..stop, mirrored at both ends as often as needed.

    The edge itself is not repeated: 0 1 2 1 0 1 2 … for length 3.
    """
    period = max(1, 2 * (length - 1))
    folded = np.arange(start, stop) % period
    return np.minimum(folded, period - folded) if length > 1 else np.zeros_like(folded)


def blend_weights(tile_pixels: int, overlap_pixels: int) -> Tensor:
    """Weights of a tile's pixels, float16 [4, 4, T, T]; index them with `side` of the tile's row and of its column.

    Across an overlap the weights follow two Gaussians of sigma T / 8 around the tiles' centres (the shape of nnU-Net's
    importance map), divided by their sum in advance: at every pixel the weights of all tiles add up to 1.
    """
    stride = tile_pixels - overlap_pixels
    distance = torch.arange(tile_pixels, dtype=torch.float64) + 0.5 - tile_pixels / 2
    gaussian = torch.exp(-(distance**2) / (2 * (tile_pixels / 8) ** 2))
    rising = gaussian[:overlap_pixels] / (gaussian[:overlap_pixels] + gaussian[stride:])
    sides = torch.ones(4, tile_pixels, dtype=torch.float64)
    sides[[1, 3], :overlap_pixels] = rising
    sides[[2, 3], stride:] = rising.flip(0)
    return (sides[:, None, :, None] * sides[None, :, None, :]).half()


def side(index: int, count: int) -> int:
    """Neighbours of tile `index` of `count` in a row or column: 1 for the one before, plus 2 for the one after."""
    return (1 if index > 0 else 0) + (2 if index < count - 1 else 0)
