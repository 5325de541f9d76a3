"""How soon a model may be restarted again."""

from collections import deque
from collections.abc import Callable

FIRST_S = 1.0
LONGEST_S = 60.0
WINDOW_S = 3600.0


class Tries:
    """How soon a model may be restarted again: waits double from 1 to 60 s, at most `most` tries within `window_s`."""

    def __init__(self, clock: Callable[[], float], most: int, window_s: float = WINDOW_S) -> None:
        self._clock = clock
        self._most = most
        self._window_s = window_s
        self._ends_s: deque[float] = deque()

    @property
    def made(self) -> int:
        """Tries within the window."""
        while self._ends_s and self._clock() - self._ends_s[0] >= self._window_s:
            self._ends_s.popleft()
        return len(self._ends_s)

    @property
    def used_up(self) -> bool:
        """Whether the next one has to wait until the window lets go of an old one."""
        return self.made >= self._most

    def wait_s(self) -> float:
        """Seconds until the next try may begin; 0 when it may now."""
        if not self.made:
            return 0.0
        due_s = self._ends_s[-1] + min(LONGEST_S, FIRST_S * 2.0 ** (self.made - 1))
        if self.used_up:
            due_s = self._ends_s[0] + self._window_s
        return max(0.0, due_s - self._clock())

    def note(self) -> None:
        """One try has ended now, well or badly."""
        self._ends_s.append(self._clock())
