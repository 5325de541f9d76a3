"""Where strips of a canvas are reduced to a part of the mask: memory of one device that is taken once."""

import torch
from torch import Tensor

from common.wire import UnetLimits
from estimator.unet import STAGED_STRIPS


class Workspace:
    """Room for STAGED_STRIPS strips, whatever the image; not thread-safe.

    What ``gather`` and ``decide`` return is overwritten when they are called again, in the order of the device's queue.
    """

    def __init__(self, limits: UnetLimits, device: torch.device) -> None:
        """Takes what ``estimator.unet.staging_bytes`` counts beside the blend weights."""
        pixels = STAGED_STRIPS * limits.tile_pixels * limits.overlap_pixels
        self._logits = torch.empty(limits.classes * pixels, dtype=torch.half, device=device)
        self._mask = torch.empty(pixels, dtype=torch.uint8, device=device)
        self._highest = torch.empty(pixels if limits.classes > 1 else 0, dtype=torch.long, device=device)

    @property
    def held_bytes(self) -> int:
        """Bytes on the device."""
        return self._logits.nbytes + self._mask.nbytes + self._highest.nbytes

    def gather(self, strips: Tensor, indices: Tensor) -> Tensor:
        """Those of `strips`, float16 [N, C, rows, width], that `indices` name, side by side in memory."""
        shape = (len(indices), *strips.shape[1:])
        return torch.index_select(strips, 0, indices, out=_shaped(self._logits, shape))

    def decide(self, strips: Tensor, threshold: float) -> Tensor:
        """Float16 [N, C, rows, width] -> uint8 [rows, N x width].

        Whether a logit is above the threshold for one class, else the class of the highest logit.
        """
        logits = strips.permute(1, 2, 0, 3)
        mask = _shaped(self._mask, logits.shape[1:])
        if len(logits) == 1:
            torch.gt(logits[0], threshold, out=mask.view(torch.bool))
        else:
            mask.copy_(torch.argmax(logits, dim=0, out=_shaped(self._highest, logits.shape[1:])))
        return mask.flatten(1)


def _shaped(memory: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The beginning of `memory` as a tensor of this shape."""
    return memory[: torch.Size(shape).numel()].view(shape)
