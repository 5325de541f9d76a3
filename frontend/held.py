"""A lease in use."""

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from common.errors import Cancelled, DeadlineExceeded, InternalFault, RequestError, UpstreamBroken
from common.wire import Lease as WireLease
from common.wire import Statement
from frontend.ledger import Lease

Fault = TypeVar("Fault", bound=BaseException)


@dataclass
class Held:
    """A lease in use: send `wire` with the work, and put the engine's statement here when it has come."""

    lease: Lease
    wire: WireLease
    units: int = 0
    """Output tokens or pixels that it was charged for."""
    statement: Statement | None = None
    limit: asyncio.Timeout | None = None
    """Runs out at the deadline, or when the work has no engine any more."""
    void: bool = False
    fault: str = UpstreamBroken.kind.code
    """Code of the error that ended it, where there is no statement."""
    reruns: int = 0
    """How often the work was sent before, to a process that ended."""

    @property
    def outcome(self) -> str:
        """How it ended, in the words of the journal."""
        return "void" if self.void else "settled" if self.statement else self.fault

    def work(self, now_s: float) -> tuple[float, float, float]:
        """Units charged, units done, and the seconds they took; zeros where the end says nothing of the engine's pace.

        Work that was cut off at its deadline would have gone on: it is as if it had done all it was charged for.
        """
        if self.statement is not None:
            done = self.statement.output_tokens or self.statement.pixels
            return self.units, done, self.statement.queue_s + self.statement.run_s
        if self.fault == DeadlineExceeded.kind.code and not self.void:
            return self.units, self.units, now_s - self.lease.created_s
        return 0.0, 0.0, 0.0

    def note(self, error: Fault) -> Fault:
        """Remembers what ended it."""
        if isinstance(error, RequestError):
            self.fault = error.kind.code
        else:
            cancelled = isinstance(error, asyncio.CancelledError | GeneratorExit)
            self.fault = (Cancelled if cancelled else InternalFault).kind.code
        return error

    def expire(self) -> None:
        """The engine process that held it is gone; of work that has ended nothing is lost with it."""
        if self.statement is not None:
            return
        self.void = True
        if self.limit is not None and not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time())

    def expiry(self, timeout_s: float) -> RequestError:
        """Why the limit ran out, for work that was given `timeout_s`."""
        if self.void:
            return UpstreamBroken(f"{self.lease.model} was restarted while it worked")
        return DeadlineExceeded(f"not finished within {timeout_s:g} s")
