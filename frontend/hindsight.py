"""What became of the times that refused requests were told: when would they really have started?"""

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from frontend.claim import Claim
from frontend.line import Rank

OVERDUE = 4.0
"""A refusal that still does not fit after so many times its prediction gives way to a newer one, and counts as that."""


@dataclass(frozen=True)
class Refusal:
    """One request that was sent away, and looks on from its place as if it had stayed."""

    claim: Claim
    rank: Rank
    refused_s: float
    forecast_s: float
    """Seconds that it was expected to wait, before any correction."""
    predicted_s: float
    """Seconds after which it was told to come back."""


class Hindsight:
    """A bounded sample of refusals, each until it is known when it would have started."""

    def __init__(self, capacity: int = 32) -> None:
        """`capacity`: refusals that are watched at once; others are not recorded."""
        self.on_known: list[Callable[[Refusal, float], None]] = []
        """Called with a refusal and the seconds after which it would have started."""
        self._capacity = capacity
        self._refusals: list[Refusal] = []

    def __len__(self) -> int:
        return len(self._refusals)

    def __iter__(self) -> Iterator[Refusal]:
        return iter(tuple(self._refusals))

    def add(self, refusal: Refusal) -> None:
        """Watches it, where there is room."""
        if len(self._refusals) >= self._capacity:
            self._give_up(refusal.refused_s)
        if len(self._refusals) < self._capacity and refusal.predicted_s > 0:
            insort(self._refusals, refusal, key=attrgetter("rank"))

    def settle(self, refusal: Refusal, start_s: float) -> None:
        """It would have started then."""
        self._refusals.remove(refusal)
        for tell in self.on_known:
            tell(refusal, start_s - refusal.refused_s)

    def _give_up(self, now_s: float) -> None:
        for refusal in self:
            if now_s - refusal.refused_s > OVERDUE * refusal.predicted_s:
                self.settle(refusal, now_s)
