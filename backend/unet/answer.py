"""The answer of one request as it grows: mask, and probabilities where they are asked for, on the host."""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from backend.unet.canvas import Piece
from backend.unet.marks import Mark, mark
from backend.unet.request import Mask, Segmentation
from backend.unet.workspace import Workspace

_ON_THE_WAY = 4
"""Pieces of a mask that may be in pinned memory at once: enough that none is waited for."""


@dataclass(frozen=True)
class _Coming:
    """A piece of the mask that the device was asked for."""

    values: Tensor
    """uint8 [rows, columns and padding] on the host, there after `copied`."""
    place: tuple[slice, slice]
    copied: Mark | None


class Answer:
    """Takes finished pieces in any order; every pixel of the image comes in exactly one of them."""

    def __init__(self, request: Segmentation, classes: int) -> None:
        size = (request.height, request.width)
        self._mask = np.zeros(size, np.uint8)
        self._probabilities = np.zeros((classes, *size), np.float32) if request.want_probabilities else None
        self._threshold = math.log(request.threshold / (1 - request.threshold))
        self._coming: deque[_Coming] = deque()

    def write(self, piece: Piece, workspace: Workspace) -> None:
        """Reduces the logits in `workspace` and has the mask copied; the device goes on meanwhile."""
        strips, _, _, strip_width = piece.logits.shape
        count = len(piece.rows)
        width = max(0, min(strips * strip_width, self._mask.shape[1] - piece.column))
        rows, columns = slice(piece.rows.start, piece.rows.stop), slice(piece.column, piece.column + width)
        self._fetch(workspace.decide(piece.logits[:, :, :count], self._threshold), (rows, columns))
        if self._probabilities is not None:
            logits = piece.logits.cpu()[:, :, :count].permute(1, 2, 0, 3).flatten(2)
            self._probabilities[:, rows, columns] = _probabilities(logits[:, :, :width].float()).numpy()

    def mask(self) -> Mask:
        """The whole answer."""
        self._receive(0)
        return Mask(self._mask, self._probabilities)

    def _fetch(self, values: Tensor, place: tuple[slice, slice]) -> None:
        on_host = values.to("cpu", non_blocking=True)
        copied = mark(values.device)
        self._coming.append(_Coming(on_host, place, copied))
        self._receive(0 if copied is None else _ON_THE_WAY)

    def _receive(self, left: int) -> None:
        """Takes in what came first, until no more than `left` pieces are on the way."""
        while len(self._coming) > left:
            piece = self._coming.popleft()
            if piece.copied is not None:
                piece.copied.synchronize()
            part = self._mask[piece.place]
            part[:] = piece.values.numpy()[:, : part.shape[1]]


def _probabilities(logits: Tensor) -> Tensor:
    return logits.sigmoid() if len(logits) == 1 else logits.softmax(dim=0)
