"""Tiles of an image: cutting them out, and the weights with which neighbours are blended."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from estimator.unet import TileGrid


def cut(image: NDArray[np.uint8], grid: TileGrid, tile: int, out: NDArray[np.uint8]) -> None:
    """Copies a tile of `image` [H, W, 3] into `out` [T, T, 3]; beyond the edge the image is continued by reflection."""
    top, left = grid.origin(tile)
    inside = image[top : top + grid.tile_pixels, left : left + grid.tile_pixels]
    height, width = inside.shape[:2]
    out[:height, :width] = inside
    if width < grid.tile_pixels:
        out[:height, width:] = out[:height, reflect(left + width, left + grid.tile_pixels, grid.width) - left]
    if height < grid.tile_pixels:
        out[height:] = out[reflect(top + height, top + grid.tile_pixels, grid.height) - top]


def reflect(start: int, stop: int, length: int) -> NDArray[np.intp]:
    """Indices into an axis of `length` for positions start..stop, mirrored at both ends as often as needed.

    The edge itself is not repeated: 0 1 2 1 0 1 2 … for length 3.
    """
    period = max(1, 2 * (length - 1))
    folded = np.arange(start, stop) % period
    return np.minimum(folded, period - folded) if length > 1 else np.zeros_like(folded)


def blend_weights(tile_pixels: int, overlap_pixels: int) -> Tensor:
    """Weights along one axis of a tile, float16 [n, n, T]; index them with what ``TileGrid.shared`` says of the axis.

    Neighbours pass over into each other in the middle of what they share, as wide as the smallest overlap: nearer to
    its own edge a tile counts for nothing, for there it knows least of what lies around. The weights follow two
    Gaussians of sigma T / 8 around tiles at the smallest overlap (the shape of nnU-Net's importance map), divided by
    their sum in advance: at every pixel the weights of all tiles add up to 1.
    """
    kinds = tile_pixels // overlap_pixels
    distance = torch.arange(tile_pixels, dtype=torch.float64) + 0.5 - tile_pixels / 2
    gaussian = torch.exp(-(distance**2) / (2 * (tile_pixels / 8) ** 2))
    rising = gaussian[:overlap_pixels] / (gaussian[:overlap_pixels] + gaussian[-overlap_pixels:])
    before = torch.ones(kinds, tile_pixels, dtype=torch.float64)
    for shared in range(1, kinds):
        start = (shared - 1) * overlap_pixels // 2
        before[shared, :start] = 0
        before[shared, start : start + overlap_pixels] = rising
    return (before[:, None] * before.flip(1)[None]).half()
