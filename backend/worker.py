"""What both engines are made of: one thread that works in turns, and a lock over the books; everyone else only asks.

The lock is never held while the device computes or an outlet is called.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from backend import allocator
from backend.device import label, run_on
from backend.duties import Books, Canary
from backend.engine import Failed, Footprint, Health, Lost, Outlet, unheard
from backend.fallback import Ladder, Rung
from backend.faults import Fault, fault_of, first_line, is_sound
from common import errors
from common.wire import CancelOutcome

log = logging.getLogger(__name__)

Request = TypeVar("Request")
Result = TypeVar("Result")
Host = TypeVar("Host", bound="Worker[Any, Any]")


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
        self.on_lost: Lost = lambda reason: None
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
        self._lost = ""
        """Why the device is lost; empty while it is not."""
        self._canary: Canary | None = None
        self._host: Worker[Request, Result] | None = None
        """Where work goes on that found no memory here; made when it is first needed."""
        self._question: Future[str] | None = None
        """The canary's next answer, while somebody waits for it."""
        self._errands: deque[Callable[[], object]] = deque()
        """What the thread does before its next turn."""
        self._ladder = Ladder(device, self._report, books.totals)
        self._warm: Future[None] = Future()
        self._thread = threading.Thread(target=run_on, args=(device, self._run), name=f"{model}-engine", daemon=True)

    def start(self) -> None:
        """Starts the thread and waits until it has warmed up; raises what went wrong there."""
        self._thread.start()
        self._warm.result()

    def submit(self, request: Request, outlet: Outlet[Result]) -> str:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            if self._end_reason:
                raise errors.NotReady(self._end_reason)
            self._rouse()
            if not self._books.jobs:
                allocator.reset_peak(self._torch_device)
            return self._open(request, outlet, self._clock())

    def cancel(self, work_id: str) -> CancelOutcome:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            if self._host is not None and work_id in self._host._books.jobs:
                return self._host.cancel(work_id)
            self._rouse()
            return self._books.cancel(work_id)

    def footprint(self) -> Footprint:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            here = replace(
                self._idle,
                used_bytes=self._books.used_bytes,
                unleased_bytes=self._books.unleased_bytes,
                leases=self._books.leases,
                totals=dict(self._books.totals),
            )
            return here if self._host is None else here.with_moved(self._host.footprint())

    def health(self) -> Health:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            if self._end_reason:
                return Health(False, self._end_reason)
            silent_s = self._clock() - self._progress_s
            if self._has_work and silent_s > self._stall_s:
                in_hand = len(self._books.jobs)
                return Health(False, f"no {self.work} for {silent_s:.0f} s with {in_hand} requests in hand")
            return Health(True) if self._host is None else self._host.health()

    def canary(self) -> str:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            if self._end_reason:
                return self._end_reason
            if self._question is None:
                self._send(self._answer_canary)
                self._question = Future()
            question = self._question
        try:
            return question.result(self._stall_s)
        except TimeoutError:
            return f"no answer for {self._stall_s:.0f} s"

    def reclaim(self) -> int:
        """See :class:`backend.engine.Engine`."""
        return allocator.release_free_segments(self._torch_device)

    @property
    def away_bytes(self) -> int:
        """See :class:`backend.engine.Engine`."""
        return 0

    def retreat(self) -> None:
        """See :class:`backend.engine.Engine`."""
        self._send(partial(self._ladder.attempt, "leaving the card", self._retreat))

    def advance(self) -> None:
        """See :class:`backend.engine.Engine`."""
        self._send(self._advance)

    def close(self) -> None:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=self._stall_s)
        if self._host is not None:  # the thread has closed it, unless it hangs
            self._host.close()

    @abstractmethod
    def _open(self, request: Request, outlet: Outlet[Result], now_s: float) -> str:
        """Enters a request in the books, the lock held; returns its work id, raises RequestError when it is refused."""

    @abstractmethod
    def _warm_up(self) -> Canary:
        """Takes all memory that will ever be needed; returns what can be asked from then on."""

    @abstractmethod
    def _turn(self) -> None:
        """One piece of the work in the books."""

    @abstractmethod
    def _abandon(self, error: errors.RequestError) -> None:
        """Ends everything in hand with `error`, whatever state it is in."""

    def _retreat(self) -> None:
        """On the thread; nothing of an engine moves unless it says otherwise."""

    def _advance(self) -> None:
        """On the thread; the reverse of ``_retreat``."""

    @property
    def _has_work(self) -> bool:
        return self._books.has_work or bool(self._errands) or self._question is not None

    @property
    def _end_reason(self) -> str:
        """Why it takes no work any more; empty while it does."""
        if self._lost:
            return f"the device is lost: {self._lost}"
        if self._closing:
            return "the engine is closing"
        return "" if self._thread.is_alive() else "the engine's thread has ended"

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

    def _send(self, errand: Callable[[], object]) -> None:
        """Has the thread do something before its next turn."""
        with self._wake:
            self._rouse()
            self._errands.append(errand)

    def _rouse(self) -> None:
        """Wakes the thread for work that is about to come, the lock held; one that was idle is silent from now on."""
        if not self._has_work:
            self._progress_s = self._clock()
        self._wake.notify()

    def _report(self, work: str, error: Exception) -> None:
        self.on_failure(work, error)

    @torch.inference_mode()
    def _run(self) -> None:
        """The thread. Whatever a turn raises, the next one happens, unless the device is lost."""
        try:
            self._canary = self._warm_up()
            self.warm_peak_bytes = allocator.peak_bytes(self._torch_device)
            self._base_bytes = allocator.read(self._torch_device).allocated_bytes
        except BaseException as error:
            self._warm.set_exception(error)
            return
        self._warm.set_result(None)
        while self._await_work():
            self._lost = self._work()
        self._abandon(errors.NotReady(self._end_reason))
        if self._question is not None and not self._question.done():
            self._question.set_result(self._end_reason)
        if self._host is not None:
            self._host.close()
        if self._lost:
            log.critical("%s", self._end_reason)
            self.on_lost(self._lost)

    def _await_work(self) -> bool:
        """Whether there is work; False once the engine closes, or has lost its device."""
        with self._wake:
            self._wake.wait_for(lambda: self._has_work or self._closing or self._lost)
            return not (self._closing or self._lost)

    def _work(self) -> str:
        """Its errands, then one turn; returns why the device is lost, empty while it is not."""
        try:
            while self._errands:
                self._errands.popleft()()
            if self._books.has_work:
                self._turn()
        except errors.DeviceLost as error:
            return str(error)
        except Exception as error:
            log.exception("a turn of the engine failed; everything in hand is dropped")
            fault, reason = fault_of(error), first_line(error)
        else:
            return ""
        if fault is Fault.LOST or not is_sound(self._torch_device):
            return reason
        self._abandon(errors.InternalFault("the engine failed and dropped all its work"))
        return ""

    def _answer_canary(self) -> None:
        question = self._question
        assert question is not None
        assert self._canary is not None
        check = self._canary.check
        try:
            outcome = self._ladder.climb("the canary", [(Rung.NONE, check), (Rung.RECLAIM, check)])
        except errors.DeviceLost as error:
            question.set_result(str(error))
            raise
        with self._wake:
            self._question, self._progress_s = None, self._clock()
        if outcome.fault is Fault.MEMORY:
            question.set_exception(errors.NotNow("there is no memory to ask the canary", retry_after_s=1.0))
        else:
            question.set_result("it cannot be computed" if outcome.result is None else outcome.result)


def started(host: Host, hear: Failed) -> Host:
    """An engine on the host that goes on with another's work; `hear` is told of its failures."""
    host.on_failure = hear
    host.start()
    return host
