"""What the UNet tests share: a network whose answer is known at every pixel, and an outlet that remembers."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.unet.engine import UnetEngine
from backend.unet.marks import Mark, mark
from backend.unet.network import UNet
from backend.unet.request import Mask, Segmentation
from backend.unet.runner import TileRunner
from common.errors import RequestError
from common.sections import Unet
from common.wire import Lease, Statement, UnetLimits

MakeMark = Callable[[torch.device], Mark | None]

TILE = 32
WAIT_S = 20.0


def limits(classes: int = 1, tile_pixels: int = TILE, strips: int = 64) -> UnetLimits:
    return UnetLimits(
        classes=classes,
        class_names=tuple(f"class{n}" for n in range(classes)),
        tile_pixels=tile_pixels,
        overlap_pixels=tile_pixels // 4,
        canvas_bytes=strips * strip_bytes_of(classes, tile_pixels),
        canvas_itemsize=2,
        max_pixels=10**8,
        default_threshold=0.5,
    )


def strip_bytes_of(classes: int = 1, tile_pixels: int = TILE) -> int:
    return classes * tile_pixels * (tile_pixels // 4) * 2


class Pointwise(UNet):
    """Logits are 8 x the normalised channels, so tiles agree and the mask is ``channel > 127.5`` at every pixel.

    `batches` are the sizes that ran; `before` is called ahead of each pass and may wait or raise.
    """

    def __init__(self, classes: int = 1) -> None:
        super().__init__(width=4, classes=classes)
        self.batches: list[int] = []
        self.before: Callable[[Tensor], None] = lambda images: None

    def forward(self, images: Tensor) -> Tensor:
        self.before(images)
        self.batches.append(len(images))
        return 8 * images[:, : self.classes]


class Recorder:
    """An outlet that keeps what it is told and lets a test wait for the end."""

    def __init__(self) -> None:
        self.results: list[Mask] = []
        self.statement: Statement | None = None
        self.error: RequestError | None = None
        self.ends = 0
        self._end = threading.Event()

    def put(self, result: Mask) -> None:
        self.results.append(result)

    def finish(self, statement: Statement) -> None:
        self.statement = statement
        self._count()

    def fail(self, error: RequestError) -> None:
        self.error = error
        self._count()

    @property
    def ended(self) -> bool:
        return self._end.is_set()

    def wait(self) -> "Recorder":
        assert self._end.wait(WAIT_S), "the request did not end"
        return self

    @property
    def mask(self) -> NDArray[np.uint8]:
        self.wait()
        assert self.error is None, self.error
        assert self.ends == 1
        (result,) = self.results
        return result.mask

    def _count(self) -> None:
        self.ends += 1
        self._end.set()


def engine(
    network: Pointwise | None = None, strips: int = 64, tile_batch: int = 2, mark: MakeMark = mark, **settings: Any
) -> UnetEngine:
    """A started engine around `network`, with a canvas account of `strips` strips."""
    network = network or Pointwise()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    runner = TileRunner(network, TILE, tile_batch, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), mark=mark)
    names = tuple(f"class{n}" for n in range(network.classes))
    canvas = strips * strip_bytes_of(network.classes)
    unet = Unet.model_validate({"class_names": names, "canvas": canvas, "tile_pixels": TILE} | settings)
    started = UnetEngine(runner, unet)
    started.start()
    network.batches.clear()
    return started


def noise(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def request(image: NDArray[np.uint8], lease: Lease | None = None, **options: Any) -> Segmentation:
    height, width = image.shape[:2]
    return Segmentation(height, width, **{"threshold": 0.5, "lease": lease, "image": image} | options)


def lease(name: str = "a", canvas_bytes: int | None = None, deadline_s: float = 60.0) -> Lease:
    return Lease(name, {"unet.canvas": canvas_bytes or 0}, deadline_s, canvas_bytes=canvas_bytes)


@contextmanager
def running(network: Pointwise, strips: int = 64, tile_batch: int = 2, **settings: Any) -> Iterator[UnetEngine]:
    started = engine(network, strips, tile_batch, **settings)
    try:
        yield started
    finally:
        started.close()


def expected(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return (image[:, :, 0] > 127).astype(np.uint8)


class Gate:
    """Holds the network's passes back until it is opened, and tells when the first one has come."""

    def __init__(self, network: Pointwise) -> None:
        self._arrived, self._open = threading.Event(), threading.Event()
        network.before = self._wait

    def _wait(self, images: torch.Tensor) -> None:
        self._arrived.set()
        assert self._open.wait(WAIT_S)

    def arrived(self) -> None:
        assert self._arrived.wait(WAIT_S)

    def open(self) -> None:
        self._open.set()


def encoded_request(announced: NDArray[np.uint8], data: bytes) -> Segmentation:
    return replace(request(announced), image=None, encoded=data)


def submit(unet: UnetEngine, image: NDArray[np.uint8], *, wait: bool = True) -> Recorder:
    outlet = Recorder()
    unet.submit(request(image), outlet)
    return outlet.wait() if wait else outlet
