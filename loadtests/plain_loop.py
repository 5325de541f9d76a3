"""What the UNet engine is compared with: the loop over batches of tiles that everybody writes first."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.unet.network import UNet
from backend.unet.tiles import cut
from common.sections import Unet
from estimator.unet import TileGrid

Image = NDArray[np.uint8]


class PlainLoop:
    """Batch of tiles to the device, normalise, network, threshold, mask to the host. One class; nothing is blended."""

    def __init__(self, network: UNet, settings: Unet) -> None:
        """`network` is on its device, in its dtype and channels_last; `settings` name batch and normalisation."""
        parameter = next(network.parameters())
        self._network = network
        self._device, self._dtype = parameter.device, parameter.dtype
        self._batch = settings.tile_batch
        deviation = 255 * torch.tensor(settings.std)
        self._scale = (1 / deviation).to(parameter).view(1, 3, 1, 1)
        self._shift = (-torch.tensor(settings.mean) / torch.tensor(settings.std)).to(parameter).view(1, 3, 1, 1)

    def masks(self, images: Sequence[Image]) -> list[Image]:
        """Masks of images of one size, each a tile."""
        return [mask for batch in self._batches(images) for mask in self._decide(batch)]

    def mask(self, image: Image, grid: TileGrid) -> Image:
        """The mask of a large image; where tiles overlap the later one wins."""
        result = np.zeros((grid.height, grid.width), np.uint8)
        tile = 0
        for batch in self._batches(_tiles(image, grid)):
            for part in self._decide(batch):
                top, left = grid.origin(tile)
                target = result[top : top + grid.tile_pixels, left : left + grid.tile_pixels]
                target[:] = part[: target.shape[0], : target.shape[1]]
                tile += 1
        return result

    @torch.inference_mode()
    def forward_only(self, pixels: Tensor, tiles: int) -> None:
        """The network alone, over and over on one batch that is on the device: what no engine can beat by much."""
        for _ in range(-(-tiles // self._batch)):
            self._network(pixels)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def normalised(self, batch: Sequence[Image]) -> Tensor:
        """Input of the network, channels_last on the device."""
        tiles = torch.from_numpy(np.stack(batch)).to(self._device).permute(0, 3, 1, 2)
        return tiles.to(self._dtype) * self._scale + self._shift

    @torch.inference_mode()
    def _decide(self, batch: Sequence[Image]) -> Image:
        logits: Tensor = self._network(self.normalised(batch))
        decided: Image = (logits[:, 0] > 0).to(torch.uint8).cpu().numpy()
        return decided

    def _batches(self, images: Iterable[Image]) -> Iterator[list[Image]]:
        batch = []
        for image in images:
            batch.append(image)
            if len(batch) == self._batch:
                yield batch
                batch = []
        if batch:
            yield batch


def _tiles(image: Image, grid: TileGrid) -> Iterator[Image]:
    for tile in range(grid.tiles):
        pixels = np.empty((grid.tile_pixels, grid.tile_pixels, 3), np.uint8)
        cut(image, grid, tile, pixels)
        yield pixels
