"""The threads that decode images, so that neither Triton's nor the engine's thread waits for it."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from backend.unet.decode import decode
from backend.unet.request import Segmentation
from common import errors

log = logging.getLogger(__name__)

THREADS = 2


@dataclass(frozen=True)
class Decoded:
    """What became of an encoded image: pixels, or the reason why there are none."""

    image: NDArray[np.uint8] | None
    """[H, W, 3]."""
    failure: errors.RequestError | None
    seconds: float


class Decoders:
    """Decodes in the background, first come first served."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="unet-decoder")

    def submit(self, request: Segmentation, done: Callable[[Decoded], None]) -> Future[None]:
        """Calls `done` from a decoder's thread when the image is decoded; cancelled before it has begun, never."""
        return self._pool.submit(lambda: done(_decode(request)))

    def close(self) -> None:
        """Returns when what has begun is done; the rest is dropped."""
        self._pool.shutdown(cancel_futures=True)


def _decode(request: Segmentation) -> Decoded:
    started_s = time.monotonic()
    image, failure = None, None
    try:
        image = _pixels(request)
    except errors.RequestError as error:
        failure = error
    except Exception:
        log.exception("an image of %d x %d pixels could not be decoded", request.width, request.height)
        failure = errors.InternalFault("the image could not be decoded")
    return Decoded(image, failure, time.monotonic() - started_s)


def _pixels(request: Segmentation) -> NDArray[np.uint8]:
    assert request.encoded is not None
    image = decode(request.encoded)
    if image.shape[:2] != (request.height, request.width):
        raise errors.InvalidRequest("the image is broken: its size is not the one in its header", param="image")
    return image
