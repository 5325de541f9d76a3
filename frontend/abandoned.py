"""Leases that nobody waits for any more, until their engine has stopped working for them."""

import asyncio
import logging
from itertools import count

from common.errors import RequestError
from common.wire import CancelOutcome, EngineStatus
from frontend.ledger import Lease, LeaseState, Ledger
from frontend.triton import Triton

LOG = logging.getLogger(__name__)


class Abandoned:
    """Cancels the work of abandoned leases and settles each one as soon as the engine says that its work has ended.

    An engine that says *unknown* to a cancel refuses the lease if it comes later, so the lease ends at once. After
    *cancelled* it ends when a status no longer lists it, provided that the status was asked for after that answer: an
    older one may have been written before the work arrived. An engine that cannot be asked keeps its leases until it
    can, or until a new process of it makes them void.
    """

    def __init__(self, triton: Triton, ledger: Ledger) -> None:
        self._triton = triton
        self._ledger = ledger
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._rounds = count()
        self._stopping: dict[str, int] = {}
        """Lease id -> the round in which the engine agreed to stop."""

    def add(self, lease_id: str) -> None:
        """Abandons the lease and has its work cancelled; nothing if it has ended. Never waits."""
        lease = self._ledger.lease(lease_id)
        if lease is not None:
            self._ledger.abandon(lease_id)
            self._ask(lease)

    def of(self, model: str) -> tuple[Lease, ...]:
        """The abandoned leases of this model."""
        return tuple(lease for lease in self._ledger.leases(LeaseState.ABANDONED) if lease.model == model)

    def next_round(self) -> int:
        """A number to be taken before a status is asked for, and given to :meth:`review` with the answer."""
        return next(self._rounds)

    def review(self, status: EngineStatus, asked_in: int) -> None:
        """Settles what the engine no longer lists, and cancels again where an earlier cancel did not get through."""
        listed = {lease.id for lease in status.leases}
        for lease in self.of(status.model):
            stopping_since = self._stopping.get(lease.id)
            if stopping_since is None:
                self._ask(lease)
            elif stopping_since < asked_in and lease.id not in listed:
                self._settle(lease)
        self._stopping = {key: since for key, since in self._stopping.items() if self._ledger.lease(key) is not None}

    async def close(self) -> None:
        """Gives up asking."""
        tasks = tuple(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ask(self, lease: Lease) -> None:
        if lease.id not in self._asking and lease.id not in self._stopping:
            self._asking[lease.id] = asyncio.create_task(self._cancel(lease), name=f"cancel {lease.id}")

    async def _cancel(self, lease: Lease) -> None:
        try:
            outcome = await self._triton.cancel(lease.model, lease.id)
            if outcome is CancelOutcome.UNKNOWN:
                self._settle(lease)
            else:
                self._stopping[lease.id] = self.next_round()
        except RequestError as error:
            LOG.debug("lease %s of %s could not be cancelled yet: %s", lease.id, lease.model, error.message)
        finally:
            del self._asking[lease.id]

    def _settle(self, lease: Lease) -> None:
        self._stopping.pop(lease.id, None)
        self._ledger.settle(lease.id)
