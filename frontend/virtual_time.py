"""An event loop whose time passes only when there is nothing else to do, and then at once."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Selector(selectors.DefaultSelector):
    """Never sleeps: what the loop wants to wait for has passed."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """Ready files; where there are none, `timeout` has passed. A loop that would wait for ever is stuck."""
        if timeout == 0:
            return []
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("every task waits for something that will never happen")
        if not ready:
            self.skipped_s += timeout or 0.0
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """``time()`` starts at 0 and is the sum of all waits."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Virtual seconds."""
        return self._clock.skipped_s


def run(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Runs asynchronous work on virtual time and returns its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work())
