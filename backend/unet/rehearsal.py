"""One image that warms up an engine, on the way that requests go."""

import numpy as np

from backend.unet.request import Mask, Segmentation
from common.errors import RequestError
from common.wire import Statement


class Rehearsal:
    """The outlet of an image that is one pixel larger than a tile, so that it needs a canvas."""

    def __init__(self, tile_pixels: int) -> None:
        edge = tile_pixels + 1
        self.request = Segmentation(edge, edge, threshold=0.5, image=np.zeros((edge, edge, 3), np.uint8))
        self.error: RequestError | None = None

    def put(self, result: Mask) -> None:
        """Nobody looks at it."""

    def finish(self, statement: Statement) -> None:
        """All is well."""

    def fail(self, error: RequestError) -> None:
        """The engine cannot be used."""
        self.error = error
