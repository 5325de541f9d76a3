"""When will it fit? Replays the expected ends of running leases, in front of a line that is served in order."""

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

Lines = Mapping[str, int]
"""Account -> bytes."""

End = tuple[float, str, Lines]
"""When a lease is expected to end, its id, and what that frees."""


class Hold(NamedTuple):
    """One request in the line: what it takes, and for how many seconds it is expected to keep it."""

    lines: Lines
    expected_s: float


def expected_start_s(
    line: Sequence[Hold],
    balances: Mapping[str, int],
    ends: Iterator[End],
    now_s: float,
) -> float | None:
    """When the last of the line is expected to start, every one before it having started in order.

    `balances`: account -> bytes left now, below 0 where it is overdrawn. `ends`: of the running leases,
    soonest first; one that is overdue may end at any moment, so it ends now. None where even
    the end of them all does not make room: then something holds bytes that no lease accounts for.
    """
    left = dict(balances)
    releases = _Releases(ends)
    at_s = now_s
    for order, (lines, expected_s) in enumerate(line):
        for account, need_bytes in lines.items():
            left[account] = left.get(account, 0) - need_bytes
        short = {account for account, need_bytes in lines.items() if need_bytes and left[account] < 0}
        while short:
            end = releases.pop()
            if end is None:
                return None
            at_s = max(at_s, end[0])
            for account, freed_bytes in end[2].items():
                left[account] = left.get(account, 0) + freed_bytes
                if left[account] >= 0:
                    short.discard(account)
        releases.push((at_s + expected_s, f"{order:06}", lines))
    return at_s


class _Releases:
    """Ends of running leases and of those that the line is about to hold, merged by time."""

    def __init__(self, running: Iterator[End]) -> None:
        self._running = running
        self._next = next(running, None)
        self._planned: list[End] = []

    def push(self, end: End) -> None:
        heappush(self._planned, end)

    def pop(self) -> End | None:
        if self._planned and (self._next is None or self._planned[0][0] < self._next[0]):
            return heappop(self._planned)
        end, self._next = self._next, next(self._running, None)
        return end
