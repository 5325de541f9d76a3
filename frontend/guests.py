"""Guests: the operator's own models, without an engine of ours, priced by a law and lent bytes of the ``card`` account.

The ledger keeps them from running at once beyond what is set aside for them; within a request they are taken at their
law's word. Triton does not notice when a client of ``infer`` leaves, so a guest's lease lasts until it has answered.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from contextlib import ExitStack

from common.errors import DeadlineExceeded, RequestError, SettingsError
from common.settings import Settings
from common.wire import CARD
from estimator.price import Line, Price
from frontend import record, tracing
from frontend.admission import Admission
from frontend.claim import Claim
from frontend.engines import MODELS
from frontend.journal import Entry, Journal
from frontend.ledger import Clock, Lease, Ledger
from frontend.metrics import Metrics
from frontend.quotas import Quotas, Spending
from frontend.triton import Reply, Triton

SETTLED = "settled"


def require(settings: Settings) -> None:
    """Raises SettingsError where guests could not be kept to what is theirs."""
    guests = settings.guests
    for name in guests.models:
        if name in MODELS:
            raise SettingsError(f"guests.models.{name}: {name} has an engine and a price already")
    if guests.models and guests.capacity > settings.card.foreign:
        raise SettingsError(
            f"guests.capacity: {int(guests.capacity):,} B are promised to guests, card.foreign sets aside"
            f" {int(settings.card.foreign):,} B: raise it to that, and the guests' own standing bytes"
        )


class Guests:
    """Prices, admits and runs the requests of guests."""

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        admission: Admission,
        triton: Triton,
        journal: Journal,
        metrics: Metrics,
        quotas: Quotas,
        clock: Clock,
    ) -> None:
        """`quotas` are those of all requests together."""
        self._laws = settings.guests.models
        self._ledger = ledger
        self._admission = admission
        self._triton = triton
        self._journal = journal
        self._metrics = metrics
        self._clock = clock
        self._quotas = quotas
        self._running: set[asyncio.Task[Reply]] = set()
        ledger.set_capacity(CARD, settings.guests.capacity if self._laws else 0)

    def __contains__(self, model: object) -> bool:
        return model in self._laws

    def price(self, model: str, body_bytes: int) -> Price:
        """What a request with so large a body adds while it runs, by the model's law."""
        law = self._laws[model]
        grown = math.ceil(law.per_body_byte * body_bytes)
        why = f"{model}: {int(law.fixed):,} + {law.per_body_byte:g} x {body_bytes:,} bytes of the request"
        return Price((Line(CARD, int(law.fixed) + grown, why),))

    async def infer(self, model: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Reply:
        """Triton's answer, as it gave it; `timeout_s` covers waiting and running. Raises RequestError."""
        end_s, price, tenant = self._clock() + timeout_s, self.price(model, len(body)), record.current().tenant
        with ExitStack() as paying:
            spending = paying.enter_context(self._quotas.spending(tenant, price.total_bytes))
            lease = await self._admit(model, price, len(body), timeout_s, spending)
            paid = paying.pop_all()
        work = asyncio.create_task(self._work(lease, paid, headers, body), name=f"guest {model}")
        self._running.add(work)
        work.add_done_callback(self._running.discard)
        try:
            async with asyncio.timeout(max(0.0, end_s - self._clock())):
                return await asyncio.shield(work)
        except TimeoutError:
            self._ledger.abandon(lease.id)
            raise DeadlineExceeded(f"not finished within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            self._ledger.abandon(lease.id)
            raise

    async def close(self) -> None:
        """Waits for nobody: what guests still do ends with the model server."""
        for work in tuple(self._running):
            work.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _admit(self, model: str, price: Price, body_bytes: int, timeout_s: float, spending: Spending) -> Lease:
        note = record.current()
        note.model, note.price_bytes = model, price.total_bytes
        expected_s = min(timeout_s, self._laws[model].expected_s)
        claim = Claim(model, price, "", expected_s, None, note.caller, body_bytes)
        asked_s = self._clock()
        try:
            note.tenant.require(model)
            spending.estimate(expected_s)
            with tracing.span("wait for bytes"):
                lease = await self._admission.admit(claim, timeout_s)
        except RequestError as error:
            self._metrics.refused(error.kind.code)
            raise
        spending.begin()
        self._ledger.start(lease.id)
        self._metrics.queue_waited(self._clock() - asked_s)
        note.lease = lease.id
        return lease

    async def _work(self, lease: Lease, paid: ExitStack, headers: Mapping[str, str], body: bytes) -> Reply:
        """Keeps the lease until Triton has answered, whoever still waits for that."""
        tenant, outcome = record.current().tenant.name, SETTLED
        try:
            return await self._triton.forward("POST", f"/v2/models/{lease.model}/infer", headers, body)
        except RequestError as error:
            outcome = error.kind.code
            raise
        finally:
            paid.close()
            self._ledger.settle(lease.id)
            self._journal.append(Entry.of(lease, outcome, None, tenant, time.time()))
            self._metrics.spent(tenant, lease.price.total_bytes * (self._clock() - lease.created_s))
