"""The segmentation model's canary: the logits of a fixed picture of one tile."""

import numpy as np
import torch
from torch import Tensor

from backend.unet.runner import TileRunner

TOLERANCE = 0.01
"""Of the logits' range: what another order of additions may change in float16."""


class Canary:
    """See :class:`backend.worker.Canary`: one tile through the network, as any other."""

    def __init__(self, runner: TileRunner) -> None:
        """Learns the answer."""
        self._runner = runner
        size = (runner.tile_pixels, runner.tile_pixels, 3)
        self._picture = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
        self._known = self._ask()
        self._allowed = TOLERANCE * float(self._known.max() - self._known.min())

    def check(self) -> str:
        """See :class:`backend.worker.Canary`."""
        told = self._ask()
        if not bool(told.isfinite().all()):
            return "the model's output is not made of numbers"
        off = float((told - self._known).abs().max())
        return "" if off <= self._allowed else f"the model's logits are off by {off:.3g} of {self._allowed:.3g} allowed"

    def _ask(self) -> Tensor:
        self._runner.slots()[0] = self._picture
        return self._runner.run(1)[0].to("cpu", torch.float32)
