"""A segmentation engine whose memory runs out where a test wants it to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from backend.unet.canvas import StripPool
from backend.unet.engine import UnetEngine, host_engine
from backend.unet.runner import TileRunner
from common.sections import Unet
from tests.backend.unet_kit import (
    TILE,
    Pointwise,
    Recorder,
    expected,
    lease,
    limits,
    noise,
    request,
    strip_bytes_of,
)

STRIPS = 64
IMAGES = [noise(100, 130, seed=1), noise(20, 20, seed=2), noise(70, 50, seed=3), noise(33, 200, seed=4)]


def refuse(*_: object) -> None:
    torch.empty(2**60, dtype=torch.uint8)


@contextmanager
def opened(network: Pointwise, *, with_host: bool = False, **settings: Any) -> Iterator[UnetEngine]:
    """An engine with host canvases beside its own, as on a card; `with_host`: and an engine on the host."""
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    runner = TileRunner(network, TILE, 3, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    unet = Unet.model_validate(
        {
            "class_names": ("x",),
            "canvas": STRIPS * strip_bytes_of(),
            "tile_pixels": TILE,
            "mean": (0.5,) * 3,
            "std": (0.5,) * 3,
        }
        | settings
    )
    make_host = partial(healthy_host, runner, unet) if with_host else None
    made = UnetEngine(
        runner, unet, host_pool=StripPool(limits(strips=STRIPS), torch.device("cpu")), make_host=make_host
    )
    made.start()
    network.batches.clear()
    try:
        yield made
    finally:
        made.close()


def healthy_host(runner: TileRunner, settings: Unet) -> UnetEngine:
    """The engine on the host, whose network does not fail with the one it was copied from."""
    made = host_engine(runner, settings)
    network = made._runner.network
    assert isinstance(network, Pointwise)
    network.before = lambda images: None
    return made


def all_masks(unet: UnetEngine, network: Pointwise) -> list[Recorder]:
    """All images at once, to their ends."""
    outlets = [Recorder() for _ in IMAGES]
    for number, (image, outlet) in enumerate(zip(IMAGES, outlets, strict=True)):
        unet.submit(request(image, lease(f"l{number}", canvas_bytes=10**9)), outlet)
    return [outlet.wait() for outlet in outlets]


def assert_right(outlets: list[Recorder]) -> None:
    for image, outlet in zip(IMAGES, outlets, strict=True):
        np.testing.assert_array_equal(outlet.mask, expected(image))


def rungs(outlets: list[Recorder]) -> set[str]:
    return {outlet.statement.rung for outlet in outlets if outlet.statement}


def failing(*calls: int) -> Callable[[object], None]:
    """Refuses memory at these calls, counted from 0."""
    made = [0]

    def before(images: object) -> None:
        made[0] += 1
        if made[0] - 1 in calls:
            refuse()

    return before
