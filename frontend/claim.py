"""What a request asks of the gate: bytes, for how long, and in whose name."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from estimator.price import Price

Lines = Mapping[str, int]
"""Account -> bytes."""


@dataclass(frozen=True)
class Caller:
    """In whose name a request comes, and what that is worth in the line."""

    tenant: str = "anyone"
    weight: float = 1.0
    """Its share of byte-seconds beside other tenants that wait; above 0."""
    priority: int = 0
    """A higher one goes first, whatever the shares."""


ANYONE = Caller()


@dataclass(frozen=True)
class Claim:
    """One request at the gate."""

    model: str
    price: Price
    boot_id: str
    """The engine process that the price was made for."""
    expected_s: float
    """Seconds for which it is expected to hold its price."""
    longest_s: float | None = None
    """Seconds for which it holds it at the most, as far as one can tell; None is `expected_s`."""
    caller: Caller = ANYONE
    body_bytes: int = 0
    """Host memory that the request itself takes while it waits."""

    @cached_property
    def lines(self) -> Lines:
        """What it asks of each account."""
        return self.price.by_account()

    @cached_property
    def byte_seconds(self) -> float:
        """What it is expected to use up, of all accounts together."""
        return self.price.total_bytes * self.expected_s
