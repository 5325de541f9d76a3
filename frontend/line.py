"""The waiting line: who waits, in which order, and how much of each account."""

import asyncio
import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from common.sections import Admission
from frontend.claim import Claim, Lines
from frontend.fairness import Span
from frontend.forecast import NOTHING, Backlog
from frontend.ledger import Lease

Rank = tuple[int, float, int]
"""Priority, highest first (so its negative); virtual finish of the tenant; arrival. Lower is served first."""


@dataclass(eq=False)
class Waiter:
    """One that waits."""

    claim: Claim
    rank: Rank
    span: Span
    """On the clock of fair shares."""
    joined_s: float
    forecast_s: float | None
    """Seconds that it was expected to wait when it came, before any correction."""
    grant: asyncio.Future[Lease]

    @property
    def lines(self) -> Lines:
        """Account -> bytes."""
        return self.claim.lines


class Line:
    """Waiters in order of rank, with running sums, so that no decision has to add them up."""

    def __init__(self) -> None:
        self.body_bytes = 0
        """Host memory that the waiting requests themselves take."""
        self._waiters: list[Waiter] = []
        self._backlog: dict[str, Backlog] = {}
        self._heads: list[Waiter] | None = []

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(tuple(self._waiters))

    @property
    def last(self) -> Waiter:
        """The one behind all others; there must be one."""
        return self._waiters[-1]

    def has_room(self, claim: Claim, rank: Rank | None, settings: Admission) -> bool:
        """Whether the line stays within its bounds with this claim, if need be in place of a last one that it outranks.

        Without a rank it outranks nobody.
        """
        outranks = rank is not None and bool(self._waiters) and rank < self.last.rank
        places, body_bytes = (1, self.last.claim.body_bytes) if outranks else (0, 0)
        return (
            len(self) - places < settings.max_waiting
            and self.body_bytes - body_bytes + claim.body_bytes <= settings.max_waiting_bytes
        )

    def add(self, waiter: Waiter) -> None:
        """Puts it where its rank says."""
        insort(self._waiters, waiter, key=_rank)
        self._count(waiter, 1)

    def remove(self, waiter: Waiter) -> bool:
        """Takes it out; False where it was not, or no longer, in the line."""
        index = bisect_left(self._waiters, waiter.rank, key=_rank)
        if index == len(self._waiters) or self._waiters[index] is not waiter:
            return False
        del self._waiters[index]
        self._count(waiter, -1)
        return True

    def heads(self, rank: Rank) -> list[Waiter]:
        """Those before `rank` that nobody in front of them competes with: the first on its accounts."""
        if self._heads is None:
            self._heads = list(_firsts(self._waiters, len(self._backlog)))
        return [head for head in self._heads if head.rank < rank]

    def earliest_start(self, priority: int) -> float:
        """Where the first of those of this priority stands on the clock of fair shares; infinite where none waits."""
        starts = (waiter.span.start for waiter in self._waiters if waiter.claim.caller.priority == priority)
        return min(starts, default=math.inf)

    def ahead_of(self, rank: Rank) -> Mapping[str, Backlog]:
        """Account -> what waits before `rank`."""
        if not self._waiters or self.last.rank < rank:
            return self._backlog
        sums: dict[str, Backlog] = {}
        for waiter in self._waiters[: bisect_left(self._waiters, rank, key=_rank)]:
            _add(sums, waiter, 1)
        return sums

    def _count(self, waiter: Waiter, sign: int) -> None:
        self.body_bytes += sign * waiter.claim.body_bytes
        _add(self._backlog, waiter, sign)
        if not self._waiters:
            self._backlog.clear()
        self._heads = None


def _firsts(waiters: list[Waiter], accounts: int) -> Iterator[Waiter]:
    taken: set[str] = set()
    for waiter in waiters:
        if len(taken) == accounts:
            return
        if taken.isdisjoint(waiter.lines):
            yield waiter
            taken.update(waiter.lines)


def _add(sums: dict[str, Backlog], waiter: Waiter, sign: int) -> None:
    for account, need_bytes in waiter.lines.items():
        sums[account] = sums.get(account, NOTHING).plus(sign * need_bytes, waiter.claim.expected_s)


def _rank(waiter: Waiter) -> Rank:
    return waiter.rank
