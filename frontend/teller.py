"""The teller: the life of a request, from its price to its statement."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np

from common.errors import (
    Cancelled,
    InternalFault,
    NotReady,
    RequestError,
    UpstreamBroken,
)
from common.settings import Settings
from common.wire import UNET_CANVAS, Statement
from common.wire import Lease as WireLease
from estimator.price import Price
from frontend import faults, record, tracing
from frontend.admission import Admission
from frontend.claim import Claim
from frontend.engines import Engines
from frontend.held import Held
from frontend.journal import Entry, Journal
from frontend.ledger import Clock, Lease, Ledger
from frontend.metrics import Metrics
from frontend.pace import Pace
from frontend.prices import Prices
from frontend.quotas import Quotas, Spending
from frontend.reruns import Flight, Reruns
from frontend.runs import ImageJob, ImageResult, TextChunk, TextJob, TextRun
from frontend.triton import Triton, strictly

__all__ = ["Held", "ImageJob", "ImageResult", "Teller", "TextChunk", "TextJob", "TextRun"]

LOG = logging.getLogger(__name__)

Answer = TypeVar("Answer")

GUESSED_TOKENS_PER_S = 20.0
GUESSED_PIXELS_PER_S = 200_000.0
"""Guesses until the first statement: a small model on two CPU cores."""


class Teller:
    """Prices, admits, runs and settles; every route that costs bytes goes through it."""

    def __init__(
        self,
        engines: Engines,
        admission: Admission,
        ledger: Ledger,
        triton: Triton,
        journal: Journal,
        metrics: Metrics,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._engines = engines
        self._admission = admission
        self._ledger = ledger
        self._triton = triton
        self._journal = journal
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self.prices = Prices(engines, metrics)
        self._paces = {"llama": Pace(GUESSED_TOKENS_PER_S), "unet": Pace(GUESSED_PIXELS_PER_S)}
        self._reruns = Reruns(engines, metrics, clock)
        self.quotas = Quotas(clock)
        self._live: dict[str, Held] = {}
        self._pumps: set[asyncio.Task[None]] = set()
        engines.on_void.append(self._expire)

    def price_text(self, job: TextJob) -> Price:
        """What the job will add while it runs; raises NotReady while the engine has not said what a page costs."""
        return self.prices.text(job)

    def price_image(self, job: ImageJob) -> Price:
        """What the job will add while it runs; raises NotReady while the engine has not said how it tiles."""
        return self.prices.image(job)

    def expected_s(self, model: str, units: float) -> float:
        """Seconds that so many output tokens (llama) or pixels (unet) are expected to take."""
        return self._paces[model].expected_s(units)

    async def generate(self, job: TextJob, timeout_s: float, *, whole: bool = False) -> TextRun:
        """Starts a text request; returns when the engine has it.

        `timeout_s` covers waiting and running; with `whole` nothing is read before the end, so a request whose engine
        dies is run again. Raises RequestError, and then nothing runs.
        """
        run = TextRun(self.price_text(job), whole=whole)
        run.task = asyncio.create_task(self._pump(run, job, timeout_s), name="text run")
        self._pumps.add(run.task)
        run.task.add_done_callback(self._pumps.discard)
        try:
            await run.started
        except BaseException:
            run.task.cancel()
            raise
        return run

    async def segment(self, job: ImageJob, timeout_s: float) -> ImageResult:
        """Runs an image request; `timeout_s` covers waiting and running. Raises RequestError."""
        async with self.segmenting(job, timeout_s) as result:
            return result

    @asynccontextmanager
    async def segmenting(self, job: ImageJob, timeout_s: float) -> AsyncIterator[ImageResult]:
        """The same, with the lease held for the time of the block: what is made of the mask is paid for until then."""

        async def send(held: Held) -> ImageResult:
            lease = np.array([held.wire.to_json().encode()], dtype=np.object_)
            outputs = ["mask", "statement"] + ["probabilities"] * job.probabilities
            arrays = await self._triton.infer("unet", job.inputs() | {"lease": lease}, outputs)
            held.statement = read_statement(arrays["statement"].flat[0])
            probabilities = arrays.get("probabilities")
            return ImageResult(arrays["mask"], probabilities, held.statement, held.lease.price, held.reruns)

        async with self.sending_image(job, timeout_s, send) as result:
            yield result

    @asynccontextmanager
    async def sending_image(
        self, job: ImageJob, timeout_s: float, send: Callable[[Held], Awaitable[Answer]]
    ) -> AsyncIterator[Answer]:
        """What `send` gives, with the lease held for the time of the block; it is called again if the engine dies.

        It sends the work under the lease and leaves the statement there. Raises as :meth:`hold` does.
        """
        async with AsyncExitStack() as kept:

            async def attempt(flight: Flight) -> Answer:
                async with AsyncExitStack() as trying:
                    held = await trying.enter_async_context(self._hold_image(job, flight.left_s))
                    held.reruns, flight.boot_id = flight.number, held.lease.boot_id
                    answer = await send(held)
                    await kept.enter_async_context(trying.pop_all())
                    return answer

            yield await self._reruns.run("unet", timeout_s, attempt)

    def _hold_image(self, job: ImageJob, timeout_s: float) -> AbstractAsyncContextManager[Held]:
        """A lease for an image; see :meth:`hold`. Raises NotReady."""
        price = self.price_image(job)
        canvas_bytes = price.by_account().get(UNET_CANVAS, 0)
        pixels, body_bytes = job.height * job.width, job.body_bytes
        return self.hold("unet", price, timeout_s, pixels, canvas_bytes=canvas_bytes, body_bytes=body_bytes)

    @asynccontextmanager
    async def hold(
        self,
        model: str,
        price: Price,
        timeout_s: float,
        units: int,
        *,
        max_tokens: int | None = None,
        canvas_bytes: int | None = None,
        body_bytes: int = 0,
    ) -> AsyncIterator[Held]:
        """A lease for the time of the block, which sends the work and leaves the statement in :class:`Held`.

        `units`: output tokens (llama) or pixels (unet) that it may do at the most; `body_bytes` wait with it in memory.
        Leaving with a statement settles the lease; leaving without one, in whatever way, abandons it and cancels the
        work. Raises the refusal of admission before the block, and DeadlineExceeded after `timeout_s` in all.
        """
        note = record.current()
        note.model, note.price_bytes = model, price.total_bytes
        end_s = self._clock() + timeout_s
        pace = self._paces[model]
        expected_s, longest_s = pace.expected_s(units), pace.longest_s(units)
        if pace.guessed:
            expected_s = min(timeout_s, expected_s)
        claim = Claim(model, price, "", expected_s, longest_s, note.caller, body_bytes)
        with self.quotas.spending(note.tenant, price.total_bytes) as spending:
            lease = await self._admit(claim, timeout_s, spending)
            left_s = max(0.0, end_s - self._clock())
            note.lease = lease.id
            held = Held(lease, WireLease(lease.id, lease.lines, left_s, max_tokens, canvas_bytes), units)
            self._live[lease.id] = held
            try:
                async with asyncio.timeout(left_s) as held.limit:
                    yield held
            except TimeoutError as error:
                if held.limit is None or not held.limit.expired():
                    held.note(error)
                    raise
                raise held.note(held.expiry(timeout_s)) from None
            except BaseException as error:
                held.note(error)
                raise
            finally:
                del self._live[lease.id]
                self._end(held)

    async def close(self, limit_s: float) -> None:
        """Cancels every text run and waits for the end of all abandoned work, at most `limit_s` seconds."""
        pumps = tuple(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        await self._engines.drain(limit_s)

    async def _admit(self, claim: Claim, timeout_s: float, spending: Spending) -> Lease:
        asked_s, model = self._clock(), claim.model
        try:
            record.current().tenant.require(model)
            spending.estimate(claim.expected_s)
            boot_id = self._engines.require(model).boot_id
            with tracing.span("wait for bytes"):
                lease = await self._admission.admit(replace(claim, boot_id=boot_id), timeout_s)
            if not self._ledger.start(lease.id):
                raise NotReady(f"{model} was restarted while the request waited", retry_after_s=1.0)
        except RequestError as error:
            self._metrics.refused(error.kind.code)
            raise
        spending.begin()
        self._metrics.queue_waited(self._clock() - asked_s)
        return lease

    def _end(self, held: Held) -> None:
        """Settles what has ended, abandons what may still run; never waits, so nothing can interrupt it."""
        lease, statement = held.lease, held.statement
        if statement is None and not held.void:
            self._engines.abandon(lease.id)
        else:
            self._ledger.settle(lease.id, statement)
        tenant = record.current().tenant.name
        self._journal.append(Entry.of(lease, held.outcome, statement, tenant, time.time()))
        self._metrics.spent(tenant, lease.price.total_bytes * (self._clock() - lease.created_s))
        if statement is not None:
            self._engines.watch(lease.model).prove(lease.boot_id, asyncio.get_running_loop().time())
            self.prices.settled(lease.price, statement)
        self._paces[lease.model].observe(*held.work(self._clock()))

    def _expire(self, lease_ids: tuple[str, ...]) -> None:
        for lease_id in lease_ids:
            if lease_id in self._live:
                self._live[lease_id].expire()

    async def _pump(self, run: TextRun, job: TextJob, timeout_s: float) -> None:
        note = record.current()
        try:
            run.finish(await self._feed(run, job, timeout_s))
        except asyncio.CancelledError:
            note.outcome = Cancelled.kind.code
            run.fail(Cancelled("the request was cancelled"))
            raise
        except RequestError as error:
            note.outcome = error.kind.code
            run.fail(error)
        except Exception as error:
            LOG.error("a text run failed: %s", faults.describe(error))
            note.outcome = InternalFault.kind.code
            run.fail(InternalFault("the answer could not be made"))

    async def _feed(self, run: TextRun, job: TextJob, timeout_s: float) -> Statement:
        began_s = self._clock()

        async def attempt(flight: Flight) -> Statement:
            if flight.number:
                run.repeat()
            return await self._stream(run, job, flight, began_s)

        return await self._reruns.run("llama", timeout_s, attempt, run.may_repeat)

    async def _stream(self, run: TextRun, job: TextJob, flight: Flight, began_s: float) -> Statement:
        """One try."""
        silent = True
        units = job.n * job.max_tokens
        async with self.hold("llama", run.price, flight.left_s, units, max_tokens=job.max_tokens) as held:
            run.lease_id, flight.boot_id = held.lease.id, held.lease.boot_id
            inputs = job.inputs() | {"lease": held.wire.to_json()}
            async with aclosing(self._triton.generate_stream("llama", inputs)) as events:
                async for event in events:
                    run.start()
                    chunk = TextChunk.read(event)
                    if chunk is not None:
                        run.put(chunk)
                    if chunk is not None and silent:
                        silent = False
                        self._metrics.first_token(self._clock() - began_s)
                    if event.get("statement"):
                        held.statement = read_statement(event["statement"])
        if held.statement is None:
            raise UpstreamBroken("the language model gave no statement")
        return held.statement


def read_statement(text: str | bytes) -> Statement:
    """The statement in an engine's answer; raises UpstreamBroken if it is none."""
    return strictly(Statement.from_json, text)
