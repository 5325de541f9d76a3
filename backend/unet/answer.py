"""The answer of one request as it grows: mask, and probabilities where they are asked for, on the host."""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.unet.canvas import Piece
from backend.unet.request import Mask, Segmentation

_ON_THE_WAY = 4
"""Pieces of a mask that may be in pinned memory at once: enough that none is waited for."""


@dataclass(frozen=True)
class _Coming:
    """A piece of the mask that the device was asked for."""

    values: Tensor
    """uint8 [rows, columns] on the host, there after `copied`."""
    place: tuple[slice, slice]
    copied: torch.cuda.Event | None


class Answer:
    """Takes finished pieces in any order; every pixel of the image comes in exactly one of them."""

    def __init__(self, request: Segmentation, classes: int) -> None:
        size = (request.height, request.width)
        self._mask = np.zeros(size, np.uint8)
        self._probabilities = np.zeros((classes, *size), np.float32) if request.want_probabilities else None
        self._threshold = math.log(request.threshold / (1 - request.threshold))
        self._coming: deque[_Coming] = deque()

    def write(self, piece: Piece) -> None:
        """Reduces the logits on their device and has the mask copied; the device goes on meanwhile."""
        rows = slice(piece.rows.start, piece.rows.stop)
        logits = piece.logits.permute(1, 2, 0, 3)
        width = max(0, min(logits.shape[2] * logits.shape[3], self._mask.shape[1] - piece.column))
        columns = slice(piece.column, piece.column + width)
        decided = _decide(logits, self._threshold).flatten(1)
        self._fetch(decided[:, :width], (rows, columns))
        if self._probabilities is not None:
            probabilities = _probabilities(logits.cpu().float()).flatten(2)
            self._probabilities[:, rows, columns] = probabilities[:, :, :width].numpy()

    def mask(self) -> Mask:
        """The whole answer."""
        self._receive(0)
        return Mask(self._mask, self._probabilities)

    def _fetch(self, values: Tensor, place: tuple[slice, slice]) -> None:
        copied = None
        if values.device.type == "cuda":
            device, values = values.device, values.contiguous().to("cpu", non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(torch.cuda.current_stream(device))
        self._coming.append(_Coming(values, place, copied))
        self._receive(0 if copied is None else _ON_THE_WAY)

    def _receive(self, left: int) -> None:
        """Takes in what came first, until no more than `left` pieces are on the way."""
        while len(self._coming) > left:
            piece = self._coming.popleft()
            if piece.copied is not None:
                piece.copied.synchronize()
            self._mask[piece.place] = piece.values.numpy()


def _decide(logits: Tensor, threshold: float) -> Tensor:
    """[C, ...] -> uint8 [...]: above the threshold (a logit) for one class, else the class of the highest logit."""
    if len(logits) == 1:
        return (logits[0] > threshold).view(torch.uint8)
    return logits.argmax(dim=0).to(torch.uint8)


def _probabilities(logits: Tensor) -> Tensor:
    return logits.sigmoid() if len(logits) == 1 else logits.softmax(dim=0)
