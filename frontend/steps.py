"""What the launcher says while it works: one line when a step begins and, on a terminal, a clock while it lasts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Steps:
    """Steps with their durations, on `console`."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Shows that `text` goes on while the block runs, and how long it took when it succeeds."""
        begun_s = time.monotonic()
        terminal = self._console.is_terminal
        if not terminal:
            self.say(f"  {text} …")
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True, disable=not terminal) as progress:
            progress.add_task(text)
            yield
        self.say(f"✓ {text}: {time.monotonic() - begun_s:.1f} s")
