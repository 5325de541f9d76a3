"""The answer of one request as it grows: mask, and probabilities where they are asked for, on the host."""

import math

import numpy as np
import torch
from torch import Tensor

from backend.unet.canvas import Piece
from backend.unet.request import Mask, Segmentation


class Answer:
    """Takes finished pieces in any order; every pixel of the image comes in exactly one of them."""

    def __init__(self, request: Segmentation, classes: int) -> None:
        size = (request.height, request.width)
        self._mask = np.zeros(size, np.uint8)
        self._probabilities = np.zeros((classes, *size), np.float32) if request.want_probabilities else None
        self._threshold = math.log(request.threshold / (1 - request.threshold))

    def write(self, piece: Piece) -> None:
        """Reduces the logits on their device, then copies."""
        rows = slice(piece.rows.start, piece.rows.stop)
        logits = piece.logits.permute(1, 2, 0, 3)
        width = max(0, min(logits.shape[2] * logits.shape[3], self._mask.shape[1] - piece.column))
        columns = slice(piece.column, piece.column + width)
        decided = _decide(logits, self._threshold).flatten(1)
        self._mask[rows, columns] = decided[:, :width].cpu().numpy()
        if self._probabilities is not None:
            probabilities = _probabilities(logits.cpu().float()).flatten(2)
            self._probabilities[:, rows, columns] = probabilities[:, :, :width].numpy()

    def mask(self) -> Mask:
        """The whole answer."""
        return Mask(self._mask, self._probabilities)


def _decide(logits: Tensor, threshold: float) -> Tensor:
    """[C, ...] -> uint8 [...]: above the threshold (a logit) for one class, else the class of the highest logit."""
    if len(logits) == 1:
        return (logits[0] > threshold).to(torch.uint8)
    return logits.argmax(dim=0).to(torch.uint8)


def _probabilities(logits: Tensor) -> Tensor:
    return logits.sigmoid() if len(logits) == 1 else logits.softmax(dim=0)
