"""What a worker asks of the parts that are particular to its model."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from common.wire import ActiveLease, CancelOutcome


class Books(Protocol):
    """The state of a worker's work. Its owner holds a lock around every call."""

    @property
    def jobs(self) -> Mapping[str, Any]:
        """Work id -> job, from the moment it is accepted until it has ended."""

    @property
    def totals(self) -> Counter[str]:
        """Counters since boot."""

    @property
    def has_work(self) -> bool:
        """There is something for the thread to do."""

    @property
    def used_bytes(self) -> int:
        """Bytes of the account that are held."""

    @property
    def unleased_bytes(self) -> int:
        """The part held for work without a lease."""

    @property
    def leases(self) -> tuple[ActiveLease, ...]:
        """Leased work, with what it holds."""

    def cancel(self, work_id: str) -> CancelOutcome:
        """Marks a job as unwanted; an id that is unknown is refused if it comes later."""


class Canary(Protocol):
    """A question whose answer was learned when all was well. Asked on the engine's thread, between two turns."""

    def check(self) -> str:
        """What is wrong with the answer; empty when nothing is."""
