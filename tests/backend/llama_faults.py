"""A runner whose steps can be held up or broken, and waiting that ends."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from backend.llama.flight import Flight
from backend.llama.runner import Runner
from backend.llama.scheduler import Slice
from tests.backend.llama_kit import WAIT_S, runner_of, settings_of


class FaultyRunner(Runner):
    """Runs `before` in front of every step of real work."""

    before: Callable[[Sequence[Slice]], None] = staticmethod(lambda step: None)

    def forward(self, step: Sequence[Slice], before: Flight | None = None) -> torch.Tensor:
        if all(slice_.sequence.pages[0] != self.pool.trash for slice_ in step):
            self.before(step)
        return super().forward(step, before)


def faulty_runner(folder: Path, before: Callable[[Sequence[Slice]], None], **llama: int) -> FaultyRunner:
    runner = runner_of(settings_of(folder, **llama))
    runner.__class__ = FaultyRunner
    assert isinstance(runner, FaultyRunner)
    runner.before = before
    return runner


def until(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def wait_for(gate: threading.Event) -> None:
    """Returns once the gate is open."""
    assert gate.wait(WAIT_S)
