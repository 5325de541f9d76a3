"""Drives a UNet engine without a server: submit, wait, count the batches."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.unet.engine import UnetEngine
from backend.unet.request import Mask, Segmentation
from backend.unet.runner import TileRunner
from common.errors import RequestError
from common.wire import Statement

WAIT_S = 300.0

Image = NDArray[np.uint8]


@dataclass(eq=False)
class Run:
    """One request's outlet."""

    on_mask: Callable[[], None] = lambda: None
    """Called by the engine's thread when the mask is there."""
    result: Mask | None = field(default=None, repr=False)
    statement: Statement | None = None
    error: RequestError | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def put(self, result: Mask) -> None:
        """Keeps the mask."""
        self.on_mask()
        self.result = result

    def finish(self, statement: Statement) -> None:
        """The good end."""
        self.statement = statement
        self.ended.set()

    def fail(self, error: RequestError) -> None:
        """The other end."""
        self.error = error
        self.ended.set()

    def wait(self) -> tuple[Image, Statement]:
        """Mask and statement; raises what the request failed with, TimeoutError when there is no end."""
        if not self.ended.wait(WAIT_S):
            raise TimeoutError(f"no end after {WAIT_S} s")
        if self.error is not None:
            raise self.error
        assert self.result is not None
        assert self.statement is not None
        return self.result.mask, self.statement


class BatchLog:
    """Tile batches of a runner; on CUDA one is done when the device has computed it, not when it has been queued."""

    def __init__(self) -> None:
        self.queued = 0
        self._done = 0
        self._events: list[torch.cuda.Event] = []

    @property
    def done(self) -> int:
        """Batches that have been computed."""
        while self._done < len(self._events) and self._events[self._done].query():  # type: ignore[no-untyped-call]
            self._done += 1
        return self._done

    def logged(self, run: Callable[[int], Tensor], device: torch.device) -> Callable[[int], Tensor]:
        """`run`, counted."""

        def counted(count: int) -> Tensor:
            self.queued += 1
            logits = run(count)
            if device.type == "cuda":
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(torch.cuda.current_stream(device))
                self._events.append(event)
            else:
                self._done += 1
            return logits

        return counted


@contextmanager
def batches(runner: TileRunner) -> Iterator[BatchLog]:
    """Logs the batches of an idle runner."""
    log, plain_run = BatchLog(), runner.run
    runner.run = log.logged(plain_run, runner.device)  # type: ignore[method-assign, assignment]
    try:
        yield log
    finally:
        runner.run = plain_run  # type: ignore[method-assign]


def noise(height: int, width: int, seed: int = 0) -> Image:
    """A random image [H, W, 3]; the same for the same seed."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def start(engine: UnetEngine, image: Image, outlet: Run) -> str:
    """Submits an image at threshold 0.5; returns its work id."""
    height, width = image.shape[:2]
    return engine.submit(Segmentation(height, width, threshold=0.5, image=image), outlet)


def together(engine: UnetEngine, images: Sequence[Image]) -> list[tuple[Image, Statement]]:
    """Masks and statements of images that are submitted at once."""
    runs = [Run() for _ in images]
    for image, run in zip(images, runs, strict=True):
        start(engine, image, run)
    return [run.wait() for run in runs]


def in_turn_s(ways: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every way, `repeats` times; they take turns, each time another one first, after a round unmeasured."""
    for work in ways.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for _ in range(repeats):
        for name in names:
            started_s = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - started_s)
        names.append(names.pop(0))
    return seconds
