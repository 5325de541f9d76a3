"""One image that warms up an engine, on the way that requests go."""

import numpy as np

from backend.unet.request import Mask, Segmentation
from common.errors import RequestError
from common.wire import Statement, UnetLimits
from estimator.unet import STAGED_STRIPS


class Rehearsal:
    """The outlet of an image that needs a canvas: the narrowest, or one whose pieces of the mask are as large as any.

    That one is as wide as the strips that are reduced at once, or the whole account, and its last row of tiles finishes
    a tile's height of image rows, so that the pinned memory in which pieces come is there as well.
    """

    def __init__(self, limits: UnetLimits, *, in_full: bool) -> None:
        tile, overlap = limits.tile_pixels, limits.overlap_pixels
        height = width = tile + 1
        if in_full:
            strips = limits.canvas_bytes // (limits.classes * tile * overlap * limits.canvas_itemsize)
            height, width = 2 * tile - overlap, max(tile, min(STAGED_STRIPS, strips) * overlap)
        image = np.zeros((height, width, 3), np.uint8)
        self.request = Segmentation(height, width, threshold=0.5, image=image)
        self.error: RequestError | None = None

    def put(self, result: Mask) -> None:
        """Nobody looks at it."""

    def finish(self, statement: Statement) -> None:
        """All is well."""

    def fail(self, error: RequestError) -> None:
        """The engine cannot be used."""
        self.error = error
