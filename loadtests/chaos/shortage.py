"""Memory that runs out inside an engine, again and again: real allocation failures at chosen places, without a server.

Nothing of it is in the engines: the place that is to fail is wrapped here, and allocates more than the device has.
"""

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from backend.device import open_card, pick, total_bytes_of
from backend.llama import engine as llama_engine
from backend.llama.engine import LlamaEngine
from backend.service import keep_evidence
from backend.unet import canvas
from backend.unet import engine as unet_engine
from backend.unet.engine import UnetEngine
from backend.watchdog import Look, Watchdog
from common import report
from common.errors import RequestError
from common.readings import Readings
from common.settings import Settings, parse_margin
from loadtests import engine_driver, unet_driver

TIMES = 100
PROMPT_TOKENS = 600
OUTPUT_TOKENS = 8
EDGE_PIXELS = 1500
SNAPSHOT_S = 10.0
TYPED = (RequestError,)

Row = dict[str, Any]


class Shortage:
    """Fails the next allocation of a place, once for each time it is armed."""

    def __init__(self, device: torch.device) -> None:
        self.armed = False
        self.failed_s = 0.0
        """When it last failed."""
        self._device = device

    def strike(self) -> None:
        """Asks the allocator for more than there is, if armed: it raises what it raises."""
        if self.armed:
            self.armed, self.failed_s = False, time.monotonic()
            torch.empty(2**50, dtype=torch.uint8, device=self._device)


def shortages(settings: Settings, times: int = TIMES) -> Iterator[Row]:
    """Prefill, decode, tile batch, canvas: `times` each; a row for each place."""
    with tempfile.TemporaryDirectory() as folder:
        settings = settings.model_copy(update={"state": settings.state.model_copy(update={"dir": Path(folder)})})
        with _opened(llama_engine.load(settings), settings) as text:
            ask = _asker(text)
            yield _suffer("prefill", text, settings, ask, _in_steps(text, chunks=True), times)
            yield _suffer("decode", text, settings, ask, _in_steps(text, chunks=False), times)
        with _opened(unet_engine.load(settings), settings) as images:
            segment = _segmenter(images)
            yield _suffer("tile", images, settings, segment, _in_tiles(images), times)
            yield _suffer("canvas", images, settings, segment, _in_canvases(), times)


Place = Callable[[Shortage], Any]
"""Makes a context in which a place strikes."""


def _suffer(name: str, engine: Any, settings: Settings, ask: Callable[[], str], place: Place, times: int) -> Row:
    """One place that fails `times`, and what became of the requests."""
    device = pick(settings)
    shortage, ends = Shortage(device), Counter[str]()
    folder = report.folder_of(settings)
    again_s: list[float] = []
    snapshots_s: list[float] = []
    with place(shortage):
        ask()
        start_bytes = _allocated(device)
        for _ in range(times):
            before = set(report.names(folder))
            shortage.armed = True
            ends[ask()] += 1
            if shortage.armed:
                ends["not struck"] += 1
            asked_s = time.monotonic()
            if ask() != "none":
                ends["next one failed"] += 1
            again_s.append(time.monotonic() - asked_s)
            if snapshot_s := _snapshot_s(folder, before, shortage.failed_s):
                snapshots_s.append(snapshot_s)
    answered = sum(count for end, count in ends.items() if end not in ("unanswered", "not struck", "next one failed"))
    return {
        "part": f"oom_{name}",
        "times": times,
        "answered_ratio": answered / times,
        "not_struck": ends["not struck"],
        "left_bytes": _allocated(device) - start_bytes,
        "ready_again_max_s": max(again_s),
        "snapshots": len(snapshots_s),
        "snapshot_max_s": max(snapshots_s, default=float("nan")),
        "ends": dict(ends),
        "healthy": int(engine.health().ready),
    }


def _asker(engine: LlamaEngine) -> Callable[[], str]:
    prompt = engine_driver.prompt(min(PROMPT_TOKENS, engine.limits.context_tokens // 2), engine.limits.vocab_tokens, 0)

    def ask() -> str:
        run = engine_driver.Run()
        return _end_of(run, lambda: engine_driver.start(engine, prompt, OUTPUT_TOKENS, run))

    return ask


def _segmenter(engine: UnetEngine) -> Callable[[], str]:
    image = unet_driver.noise(EDGE_PIXELS, EDGE_PIXELS)

    def ask() -> str:
        run = unet_driver.Run()
        return _end_of(run, lambda: unet_driver.start(engine, image, run))

    return ask


def _end_of(run: Any, start: Callable[[], object]) -> str:
    """The rung that answered, the typed error, or that nothing came."""
    try:
        start()
        run.wait()
    except TYPED as error:
        return type(error).__name__
    except TimeoutError:
        return "unanswered"
    assert run.statement is not None
    return str(run.statement.rung)


def _in_steps(engine: LlamaEngine, *, chunks: bool) -> Place:
    """Steps with a piece of a prompt, or decodes alone."""

    @contextmanager
    def place(shortage: Shortage) -> Iterator[None]:
        runner = engine._runner
        plain = runner.forward

        def forward(step: Any, *rest: Any) -> Any:
            if chunks is any(slice_.count > 1 for slice_ in step):
                shortage.strike()
            return plain(step, *rest)

        runner.forward = forward  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            runner.forward = plain  # type: ignore[method-assign]

    return place


def _in_tiles(engine: UnetEngine) -> Place:
    @contextmanager
    def place(shortage: Shortage) -> Iterator[None]:
        runner = engine._runner
        plain = runner.run

        def run(count: int) -> Any:
            shortage.strike()
            return plain(count)

        runner.run = run  # type: ignore[method-assign]
        try:
            yield
        finally:
            runner.run = plain  # type: ignore[method-assign]

    return place


def _in_canvases() -> Place:
    @contextmanager
    def place(shortage: Shortage) -> Iterator[None]:
        plain = canvas.Canvas.add

        def add(self: canvas.Canvas, tile: int, logits: torch.Tensor) -> None:
            shortage.strike()
            plain(self, tile, logits)

        canvas.Canvas.add = add  # type: ignore[method-assign]
        try:
            yield
        finally:
            canvas.Canvas.add = plain  # type: ignore[method-assign]

    return place


@contextmanager
def _opened(engine: Any, settings: Settings) -> Iterator[Any]:
    """The engine with its watchdog and its snapshots, as in its own process."""
    device = pick(settings)
    readings = Readings(
        open_card(settings, device), time.monotonic, settings.watchdog.poll_s, settings.watchdog.stale_polls
    )
    readings.poll()
    margin_bytes = parse_margin(settings.card.margin, total_bytes_of(device, settings))
    watchdog = Watchdog(readings, margin_bytes, lambda: Look(0, 0.0), engine.reclaim, settings.watchdog.poll_s)
    keep_evidence(engine, watchdog, settings, "chaos")
    watchdog.start()
    try:
        yield engine
    finally:
        watchdog.close()
        engine.close()
        if device.type == "cuda":
            torch.cuda.memory._record_memory_history(enabled=None)
            torch.cuda.empty_cache()


def _snapshot_s(folder: Path, before: set[str], failed_s: float) -> float | None:
    """Seconds from the failure until the snapshot it gave was whole; None where the last one was too young for it."""
    new = [name for name in report.names(folder) if name not in before]
    if not new:
        return None
    pause = threading.Event()
    while list((folder / new[0]).glob("*.unfinished")) and time.monotonic() - failed_s < SNAPSHOT_S:
        pause.wait(0.02)
    return time.monotonic() - failed_s


def _allocated(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated(device)
