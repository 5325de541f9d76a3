"""How often, and how soon, something that ended by itself is started again."""

from collections import deque
from collections.abc import Callable

FIRST_S = 0.5
LONGEST_S = 8.0


class Restarts:
    """Back-off with a limit: waits double from 0.5 to 8 s, and `most` ends within `window_s` are too many."""

    def __init__(self, clock: Callable[[], float], most: int = 5, window_s: float = 120.0) -> None:
        self._clock = clock
        self.most = most
        """Ends within the window that are too many."""
        self._window_s = window_s
        self._ends_s: deque[float] = deque()

    def wait_s(self) -> float | None:
        """Notes that it ended; seconds to wait before the next start, None when it has ended too often."""
        now_s = self._clock()
        while self._ends_s and now_s - self._ends_s[0] > self._window_s:
            self._ends_s.popleft()
        self._ends_s.append(now_s)
        if len(self._ends_s) >= self.most:
            return None
        return min(LONGEST_S, FIRST_S * 2.0 ** (len(self._ends_s) - 1))
