"""The protocol of an engine: what the Triton side may ask of the Llama and the UNet engine alike.

An engine owns one thread that does all device work. Every method here is thread-safe; all but ``canary`` and ``close``
return at once.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from common.errors import RequestError
from common.wire import ActiveLease, CancelOutcome, LlamaLimits, Statement, UnetLimits

Request_contra = TypeVar("Request_contra", contravariant=True)
Result_contra = TypeVar("Result_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


Failed = Callable[[str, Exception], None]
"""Hears that some work failed: what it was, and how. Called while that work still holds its memory; must not raise."""


Lost = Callable[[str], None]
"""Hears why the device is lost, once everything in hand has been failed: the process has to end."""


def unheard(work: str, error: Exception) -> None:
    """What an engine tells its failures until someone listens."""


class Outlet(Protocol[Result_contra]):
    """Where an engine puts the results of one request; never blocks.

    Any number of ``put``, then exactly one of ``finish`` and ``fail``; after that the engine holds nothing for it.
    """

    def put(self, result: Result_contra) -> None:
        """A part of the answer."""

    def finish(self, statement: Statement) -> None:
        """The answer is complete."""

    def fail(self, error: RequestError) -> None:
        """There is no (further) answer; :class:`common.errors.Cancelled` after a cancel."""


@dataclass(frozen=True)
class Health:
    """Whether the engine can take work, and if not, why."""

    ready: bool
    reason: str = ""


@dataclass(frozen=True)
class Footprint:
    """What an engine holds, in bytes; its fields are those of a status and of a report."""

    standing: Mapping[str, int]
    """Line -> bytes held whether or not anyone calls."""
    account: str
    """The account its requests draw on."""
    capacity_bytes: int
    pool_keys: tuple[str, ...]
    used_bytes: int = 0
    unleased_bytes: int = 0
    leases: tuple[ActiveLease, ...] = ()
    totals: Mapping[str, int] = field(default_factory=dict)
    """Counters since boot."""

    def with_moved(self, host: "Footprint") -> "Footprint":
        """With the work that has moved to the host: it still has its leases, and holds nothing of this account."""
        moved = tuple(replace(lease, held_bytes=0) for lease in host.leases)
        return replace(self, leases=self.leases + moved, totals=Counter(self.totals) + Counter(host.totals))


class Engine(Protocol[Request_contra, Result_co]):
    """One model, loaded and warm."""

    on_failure: Failed
    """Called from the engine's thread, without its lock."""
    on_lost: Lost
    """Called from the engine's thread as the last thing it does, when everybody who waits has been told."""

    @property
    def model(self) -> str:
        """``llama`` or ``unet``."""

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda:<uuid>``."""

    @property
    def limits(self) -> LlamaLimits | UnetLimits:
        """What requests it accepts."""

    def submit(self, request: Request_contra, outlet: Outlet[Result_co]) -> str:
        """Queues the work and returns its id: the lease's, or one of the engine's own.

        Raises RequestError when it is refused at once; the outlet is not touched then.
        """

    def cancel(self, work_id: str) -> CancelOutcome:
        """Stops the work within one step or tile batch; work with this id that comes later is refused."""

    def footprint(self) -> Footprint:
        """What it holds now."""

    def health(self) -> Health:
        """Whether it makes progress."""

    def canary(self) -> str:
        """What is wrong with its answer to a known question; empty when nothing is. Waits for the engine's turn.

        Raises NotNow when there is no memory to ask it.
        """

    def reclaim(self) -> int:
        """Gives wholly free segments back to the card; bytes."""

    @property
    def away_bytes(self) -> int:
        """Device memory that :meth:`retreat` gave back and :meth:`advance` would take again."""

    def retreat(self) -> None:
        """Moves what can be moved to the host and gives its memory back; before the next turn."""

    def advance(self) -> None:
        """Takes back what was given up, if there is room; before the next turn."""

    def close(self) -> None:
        """Fails what is running, ends the thread, frees the device."""
