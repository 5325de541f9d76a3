"""What both engines are made of: one thread that works in turns, and a lock over the books; everyone else only asks.

The lock is never held while the device computes or an outlet is called.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import torch

from backend import allocator
from backend.device import label
from backend.engine import Failed, Footprint, Health, Outlet, unheard
from common import errors
from common.wire import ActiveLease, CancelOutcome

log = logging.getLogger(__name__)

Request = TypeVar("Request")
Result = TypeVar("Result")


class Books(Protocol):
    """The state of a worker's work. Its owner holds a lock around every call."""

    @property
    def jobs(self) -> Mapping[str, Any]:
        """Work id -> job, from the moment it is accepted until it has ended."""

    @property
    def totals(self) -> Mapping[str, int]:
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


class Worker(ABC, Generic[Request, Result]):
    """See :class:`backend.engine.Engine`. Call ``start`` once before anything else."""

    work = "turn"
    """What one turn of the thread does, in a word."""
    _books: Books

    def __init__(
        self,
        model: str,
        device: torch.device,
        books: Books,
        idle: Footprint,
        stall_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`idle`: what it holds when nothing runs; `stall_s`: a turn takes no longer while all is well."""
        self.model = model
        self.device = label(device)
        self.on_failure: Failed = unheard
        self.warm_peak_bytes = 0
        """The allocator's peak once everything was warm; nothing that comes later may exceed it."""
        self._torch_device = device
        self._books = books
        self._idle = idle
        self._stall_s = stall_s
        self._clock = clock
        self._wake = threading.Condition()
        self._progress_s = clock()
        self._base_bytes = 0
        """Allocated when nothing runs."""
        self._closing = False
        self._warm: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=f"{model}-engine", daemon=True)

    def start(self) -> None:
        """Starts the thread and waits until it has warmed up; raises what went wrong there."""
        self._thread.start()
        self._warm.result()

    def submit(self, request: Request, outlet: Outlet[Result]) -> str:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            if self._closing or not self._thread.is_alive():
                raise errors.NotReady("the engine is closed")
            now_s = self._clock()
            if not self._books.jobs:
                self._progress_s = now_s
                allocator.reset_peak(self._torch_device)
            work_id = self._open(request, outlet, now_s)
            self._wake.notify()
        return work_id

    def cancel(self, work_id: str) -> CancelOutcome:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            outcome = self._books.cancel(work_id)
            self._wake.notify()
        return outcome

    def footprint(self) -> Footprint:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            return replace(
                self._idle,
                used_bytes=self._books.used_bytes,
                unleased_bytes=self._books.unleased_bytes,
                leases=self._books.leases,
                totals=dict(self._books.totals),
            )

    def health(self) -> Health:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            if self._closing or not self._thread.is_alive():
                return Health(False, "the engine's thread has ended")
            silent_s = self._clock() - self._progress_s
            if self._books.has_work and silent_s > self._stall_s:
                in_hand = len(self._books.jobs)
                return Health(False, f"no {self.work} for {silent_s:.0f} s with {in_hand} requests in hand")
        return Health(True)

    def reclaim(self) -> int:
        """See :class:`backend.engine.Engine`."""
        return allocator.release_free_segments(self._torch_device)

    def close(self) -> None:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=self._stall_s)

    @abstractmethod
    def _open(self, request: Request, outlet: Outlet[Result], now_s: float) -> str:
        """Enters a request in the books, the lock held; returns its work id, raises RequestError when it is refused."""

    @abstractmethod
    def _warm_up(self) -> None:
        """Takes all memory that will ever be needed."""

    @abstractmethod
    def _turn(self) -> None:
        """One piece of the work in the books."""

    @abstractmethod
    def _abandon(self, error: errors.RequestError) -> None:
        """Ends everything in hand with `error`, whatever state it is in."""

    @property
    def _peak_bytes(self) -> int:
        """Allocated at the most since there is work, over what is when there is none; 0 on the CPU."""
        return max(0, allocator.peak_bytes(self._torch_device) - self._base_bytes)

    def _tell(self, work_id: str, message: Callable[[], None]) -> None:
        """Calls an outlet."""
        try:
            message()
        except Exception:
            log.exception("an outlet failed; its request is cancelled")
            self.cancel(work_id)

    @torch.inference_mode()
    def _run(self) -> None:
        """The thread. Whatever a turn raises, the next one happens."""
        try:
            self._warm_up()
            self.warm_peak_bytes = allocator.peak_bytes(self._torch_device)
            self._base_bytes = allocator.read(self._torch_device).allocated_bytes
        except BaseException as error:
            self._warm.set_exception(error)
            return
        self._warm.set_result(None)
        while self._await_work():
            try:
                self._turn()
            except Exception:
                log.exception("a turn of the engine failed; everything in hand is dropped")
                self._abandon(errors.InternalFault("the engine failed and dropped all its work"))
        self._abandon(errors.NotReady("the engine is closing"))

    def _await_work(self) -> bool:
        """Whether there is work; False once the engine closes."""
        with self._wake:
            self._wake.wait_for(lambda: self._books.has_work or self._closing)
            return not self._closing
