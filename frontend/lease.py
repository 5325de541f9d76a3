"""A lease: a reservation of bytes that travels with a request."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from estimator.price import Price
from frontend.claim import ANYONE, Caller


class LeaseState(StrEnum):
    """Where a lease is on its way."""

    RESERVED = "reserved"
    """Paid for, not yet sent to the engine."""
    RUNNING = "running"
    """The engine has it."""
    ABANDONED = "abandoned"
    """The client is gone or out of time; the engine may still hold the bytes, so they still count."""
    SETTLED = "settled"
    """Ended; the ledger no longer lists it."""


@dataclass(frozen=True)
class Lease:
    """A reservation as the ledger keeps it; the wire form is :class:`common.wire.Lease`."""

    id: str
    model: str
    price: Price
    lines: Mapping[str, int]
    """Account -> bytes held there."""
    state: LeaseState
    boot_id: str
    """The engine process that holds the bytes."""
    created_s: float
    expected_end_s: float
    """On the ledger's clock, like `created_s`."""
    caller: Caller = ANYONE
