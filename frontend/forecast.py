"""When will it fit? Replays the expected ends of running leases, in front of a line that is served in order."""

from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

Lines = Mapping[str, int]
"""Account -> bytes."""


class Claim(NamedTuple):
    """One request in the line: what it takes, and for how many seconds it is expected to keep it."""

    lines: Lines
    expected_s: float


def expected_start_s(
    line: Sequence[Claim],
    balances: Mapping[str, int],
    ends: Iterator[tuple[float, Lines]],
    now_s: float,
) -> float | None:
    """When the last of the line is expected to start, every one before it having started in order.

    `balances`: account -> bytes left now, below 0 where it is overdrawn. `ends`: when running leases are expected to
    end and what that frees, soonest first; one that is overdue may end at any moment, so it ends now. None where even
    the end of them all does not make room: then something holds bytes that no lease accounts for.
    """
    left = dict(balances)
    releases = _Releases(ends)
    at_s = now_s
    for order, (lines, expected_s) in enumerate(line):
        while any(need_bytes > max(0, left.get(account, 0)) for account, need_bytes in lines.items()):
            release = releases.pop()
            if release is None:
                return None
            end_s, freed = release
            at_s = max(at_s, end_s)
            for account, freed_bytes in freed.items():
                left[account] = left.get(account, 0) + freed_bytes
        for account, need_bytes in lines.items():
            left[account] = left.get(account, 0) - need_bytes
        releases.push(at_s + expected_s, order, lines)
    return at_s


class _Releases:
    """Ends of running leases and of those that the line is about to hold, merged by time."""

    def __init__(self, running: Iterator[tuple[float, Lines]]) -> None:
        self._running = running
        self._next = next(running, None)
        self._planned: list[tuple[float, int, Lines]] = []

    def push(self, end_s: float, order: int, lines: Lines) -> None:
        heappush(self._planned, (end_s, order, lines))

    def pop(self) -> tuple[float, Lines] | None:
        if self._planned and (self._next is None or self._planned[0][0] < self._next[0]):
            end_s, _, lines = heappop(self._planned)
            return end_s, lines
        release, self._next = self._next, next(self._running, None)
        return release
