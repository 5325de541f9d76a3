"""What the frontend knows of the engines, by asking each of them again and again."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from common.errors import NotReady, RequestError, UpstreamBroken
from common.wire import ACCOUNTS, Breaker, EngineStatus, LlamaLimits, UnetLimits
from frontend import faults
from frontend.abandoned import Abandoned
from frontend.admission import Admission
from frontend.ledger import Ledger
from frontend.triton import Triton, is_dead, is_silence, is_unreachable
from frontend.watch import MISSES, Outage, Process, Watch

LOG = logging.getLogger(__name__)

__all__ = ["MISSES", "MODELS", "Engines", "Outage"]

MODELS = ("llama", "unet")
QUICK_S = 0.1
"""Between polls while a lease waits for its work to end, or an answer has just failed to come."""
SLOWEST_S = 2.0
RETRY_S = 1.0
"""What a client is told to wait for an engine that is not ready."""


class Engines:
    """Polls every engine: keeps the ledger's capacities, ends abandoned leases, voids those of dead processes."""

    def __init__(
        self,
        triton: Triton,
        ledger: Ledger,
        admission: Admission,
        poll_s: float = 0.5,
        models: Sequence[str] = MODELS,
        factors: Mapping[str, float] | None = None,
        find_process: Callable[[str], Process | None] = lambda model: None,
    ) -> None:
        """`factors`: account -> what its capacity is multiplied by (oversubscription).

        `find_process`: the process that serves a model now, where it can be seen from here.
        """
        self.on_void: list[Callable[[tuple[str, ...]], None]] = []
        """Called with the ids of leases whose engine process is gone."""
        self.needs_proof = False
        """Whether a new process takes work only when :meth:`prove` was called for it."""
        self._triton = triton
        self._ledger = ledger
        self._admission = admission
        self._poll_s = poll_s
        self._factors = dict(factors or {})
        self._find_process = find_process
        self._abandoned = Abandoned(triton, ledger)
        self._watches = {model: Watch(model) for model in models}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = self._leaving = ""

    async def start(self) -> None:
        """Begins to poll; does not wait for an answer."""
        self._tasks = [
            asyncio.create_task(self._run(watch), name=f"poll {watch.model}") for watch in self._watches.values()
        ]

    async def close(self) -> None:
        """Ends the polling."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._abandoned.close()

    def leave(self, reason: str) -> None:
        """Not ready from now on; work is still taken."""
        self._leaving = reason

    def stop(self, reason: str) -> None:
        """Not ready from now on, and nothing new is admitted; what runs goes on."""
        self._stopped = reason
        self._gate()

    def status(self, model: str) -> EngineStatus:
        """What the engine last said; raises NotReady where it has not answered (for several polls)."""
        watch = self._watches[model]
        if watch.status is None or watch.lost:
            raise NotReady(f"{model} is not ready: {watch.reason}", retry_after_s=RETRY_S)
        return watch.status

    def require(self, model: str) -> EngineStatus:
        """The same of an engine that takes work now; raises NotReady with its reason."""
        status = self.status(model)
        doubt = self._watches[model].doubt
        if not status.ready or doubt:
            raise NotReady(f"{model} is not ready: {doubt or status.reason}", retry_after_s=RETRY_S)
        return status

    def llama_limits(self) -> LlamaLimits:
        """What the language model accepts; raises NotReady."""
        limits = self.status("llama").llama
        if limits is None:
            raise NotReady("llama is not ready: it does not say what it accepts", retry_after_s=RETRY_S)
        return limits

    def unet_limits(self) -> UnetLimits:
        """What the segmentation model accepts; raises NotReady."""
        limits = self.status("unet").unet
        if limits is None:
            raise NotReady("unet is not ready: it does not say what it accepts", retry_after_s=RETRY_S)
        return limits

    def ready(self) -> tuple[bool, dict[str, str]]:
        """Whether everything takes work, and what does not: name -> reason."""
        reasons = {"server": self._stopped or self._leaving} if self._stopped or self._leaving else {}
        for watch in self._watches.values():
            if watch.status is None or watch.lost:
                reasons[watch.model] = watch.reason
            elif watch.doubt:
                reasons[watch.model] = watch.doubt
            elif not watch.status.ready:
                reasons[watch.model] = watch.status.reason or "it says so"
            elif watch.status.breaker is Breaker.OPEN:
                reasons[watch.model] = "its breaker is open"
        return not reasons, reasons

    def outage(self, model: str) -> Outage | None:
        """What is known against an engine; None where nothing is, and at a stop."""
        watch = self._watches[model]
        if self._stopped or watch.well:
            return None
        return watch.outage(self._now_s())

    def examine(self, model: str) -> None:
        """Looks whether the engine's process has ended; if so its leases are void, and nobody waits for it."""
        watch = self._watches[model]
        if watch.ended and not watch.dead:
            self._bury(watch, "its process has ended")

    def kill(self, model: str) -> None:
        """Ends the engine's process, where it can be seen from here: one that hangs keeps its memory until it wakes."""
        watch = self._watches[model]
        if watch.process is not None:
            watch.process.kill()

    def explain(self, model: str, remedy: str, *, hopeless: bool = False) -> None:
        """Not ready, and `remedy` is the reason, until the engine answers; an empty one takes that back.

        `hopeless`: nobody brings it back from here, or not soon.
        """
        watch = self._watches[model]
        watch.remedy, watch.hopeless = remedy, hopeless

    def renew(self, model: str) -> None:
        """The engine has a new process: what was seen of the old one's end no longer counts, and it is asked now."""
        watch = self._watches[model]
        watch.renew(self._now_s())
        watch.wake.set()

    def watch(self, model: str) -> Watch:
        """The engine as it was last seen."""
        return self._watches[model]

    def abandon(self, lease_id: str) -> None:
        """Nobody waits for this lease's work any more: it is cancelled, and settled when it has ended. Never waits."""
        lease = self._ledger.lease(lease_id)
        if lease is not None:
            self._abandoned.add(lease_id)
            self._watches[lease.model].wake.set()

    async def drain(self, limit_s: float) -> None:
        """Waits until the work of every abandoned lease has ended, at most `limit_s` seconds."""
        released = asyncio.Event()
        self._ledger.on_release.append(released.set)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while any(self._abandoned.of(model) for model in self._watches):
                    released.clear()
                    await released.wait()
        self._ledger.on_release.remove(released.set)

    async def _run(self, watch: Watch) -> None:
        while True:
            try:
                await self._poll(watch)
            except Exception as error:  # the next poll must still come
                LOG.error("%s could not be polled: %s", watch.model, faults.describe(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s(watch)):
                    await watch.wake.wait()
            watch.wake.clear()

    async def _poll(self, watch: Watch) -> None:
        asked_in, asked_s = self._abandoned.next_round(), self._now_s()
        try:
            status = await self._triton.status(watch.model)
            self._take(watch, status)
            self._abandoned.review(status, asked_in)
        except RequestError as error:
            self._note(watch, error, asked_s)
        except Exception as error:  # whatever an engine answers, the others and the next answer must still be heard
            LOG.error("the status of %s cannot be used: %s", watch.model, faults.describe(error))
            self._miss(watch, f"its status cannot be used: {type(error).__name__}")
        self._gate()

    def _pause_s(self, watch: Watch) -> float:
        if watch.lost:
            return float(min(SLOWEST_S, self._poll_s * 2 ** min(8, max(0, watch.misses - MISSES))))
        return QUICK_S if watch.misses or watch.unproven or self._abandoned.of(watch.model) else self._poll_s

    def _note(self, watch: Watch, error: RequestError, asked_s: float) -> None:
        """No answer, but an error in its place.

        The server says the same of a process that has ended and of one that is stopped, so where the process can be
        seen it decides.
        """
        if watch.ended:
            self._bury(watch, "its process has ended")
            return
        self._miss(watch, error.message, MISSES if is_unreachable(error) else 1)
        if asked_s < watch.renewed_s:
            return
        watch.dead = is_dead(error) and watch.process is None
        silent = is_silence(error) or (is_dead(error) and not watch.dead)
        watch.silent_since_s = (watch.silent_since_s or asked_s) if silent else None

    def _miss(self, watch: Watch, trouble: str, weight: int = 1) -> None:
        was_lost = watch.misses >= MISSES
        watch.misses += weight
        watch.trouble = trouble
        if watch.misses >= MISSES and not was_lost:
            LOG.warning("%s is not ready: %s", watch.model, trouble)
            self._admission.dismiss(watch.model, f"{watch.model} is not ready: {trouble}")

    def _bury(self, watch: Watch, trouble: str) -> None:
        """Its process has ended, and what that held with it."""
        watch.dead, watch.silent_since_s, watch.process = True, None, None
        self._miss(watch, trouble, MISSES)
        watch.wake.set()
        if watch.status is not None:
            self._void(watch.model, f"after {watch.status.boot_id}")

    def _take(self, watch: Watch, status: EngineStatus) -> None:
        if status.model != watch.model:
            raise UpstreamBroken(f"{status.model!r} answers in its place")
        if watch.status is None or watch.status.boot_id != status.boot_id:
            self._meet(watch, status)
        factor = self._factors.get(status.account, 1.0)
        self._ledger.set_capacity(status.account, int(status.capacity_bytes * factor))
        self._ledger.report_unleased(status.account, status.unleased_bytes)
        self._adopt(status)
        if watch.lost:
            LOG.info("%s answers: device %s, boot %s", watch.model, status.device, status.boot_id)
        watch.status, watch.misses, watch.answered_s = status, 0, self._now_s()
        watch.remedy, watch.hopeless, watch.dead, watch.silent_since_s = "", False, False, None
        unready = not status.ready and status.breaker is not Breaker.OPEN
        watch.unready_since_s = (watch.unready_since_s or self._now_s()) if unready else None

    def _meet(self, watch: Watch, status: EngineStatus) -> None:
        """A process that was not there before: what the last one held is gone."""
        self._void(status.model, status.boot_id)
        watch.process, watch.unproven, watch.fault = self._find_process(status.model), self.needs_proof, ""

    def _adopt(self, status: EngineStatus) -> None:
        """Work for a frontend that was here before this one: counted as it was there, cancelled, settled at its end.

        It may also arrive later than we did, out of the server's queue.
        """
        for lease in status.leases:
            if not self._ledger.issued(lease.id) and self._ledger.lease(lease.id) is None:
                lines = {account: size for account, size in lease.lines.items() if account in ACCOUNTS and size > 0}
                lines[status.account] = max(lease.held_bytes, lines.get(status.account, 0))
                self._ledger.adopt(lease.id, status.model, lines, status.boot_id)
                self._abandoned.add(lease.id)
                LOG.warning("%s still works for an earlier frontend: lease %s is cancelled", status.model, lease.id)

    def _void(self, model: str, boot_id: str) -> None:
        """Only `boot_id` may hold leases of this model from now on."""
        void = self._ledger.void(model, boot_id)
        if void:
            LOG.warning("the process of %s has ended: %d leases are void", model, len(void))
            for tell in self.on_void:
                tell(void)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _gate(self) -> None:
        """Admission is closed while the server stops, and while any breaker is open: all engines share the card."""
        tripped = [
            watch.model
            for watch in self._watches.values()
            if not watch.lost and watch.status is not None and watch.status.breaker is Breaker.OPEN
        ]
        if self._stopped:
            self._admission.close(self._stopped)
        elif tripped:
            self._admission.close(f"the card is nearly full: the breaker of {' and '.join(tripped)} is open")
        elif self._admission.closed is not None:
            self._admission.open()
