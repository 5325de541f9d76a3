"""The poller over engines that answer what they are told to."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import cast

from common.errors import UpstreamBroken
from common.sections import Admission as AdmissionSettings
from common.wire import Breaker, CancelOutcome, EngineStatus
from estimator.price import Line, Price
from frontend.admission import Admission
from frontend.engines import Engines
from frontend.ledger import Lease, Ledger
from frontend.triton import Triton
from tests.unit.web import until

PAGES = "llama.pages"
STATUS = EngineStatus(
    model="llama",
    boot_id="boot-1",
    ready=True,
    reason="",
    device="cpu",
    standing={},
    account=PAGES,
    capacity_bytes=1000,
    used_bytes=0,
    unleased_bytes=0,
    leases=(),
    pool_keys=(),
    breaker=Breaker.CLOSED,
    headroom_bytes=None,
    fragmentation_ratio=0.0,
)
UNET = replace(STATUS, model="unet", account="unet.canvas")


@dataclass
class ScriptedTriton:
    """Engines that answer what they are told to; None never answers."""

    statuses: dict[str, EngineStatus | UpstreamBroken | None]
    cancels: list[str] = field(default_factory=list)
    outcome: CancelOutcome | UpstreamBroken = CancelOutcome.UNKNOWN
    polls: int = 0
    on_their_way: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared, it holds back the statuses that are written."""

    def __post_init__(self) -> None:
        self.on_their_way.set()

    async def status(self, model: str) -> EngineStatus:
        self.polls += 1
        answer = self.statuses[model]
        await self.on_their_way.wait()
        await asyncio.sleep(0 if answer else 3600)
        if not isinstance(answer, EngineStatus):
            raise answer or UpstreamBroken("silence")
        return answer

    async def cancel(self, model: str, lease_id: str) -> CancelOutcome:
        self.cancels.append(lease_id)
        await asyncio.sleep(0)
        if isinstance(self.outcome, UpstreamBroken):
            raise self.outcome
        return self.outcome


@dataclass
class Bench:
    triton: ScriptedTriton
    ledger: Ledger
    admission: Admission
    engines: Engines

    def lease(self, boot_id: str = "boot-1") -> Lease:
        lease = self.ledger.reserve("llama", Price((Line(PAGES, 100, "a page"),)), boot_id, 5.0)
        self.ledger.start(lease.id)
        return lease

    async def polled(self, times: int = 2) -> None:
        seen = self.triton.polls
        await until(lambda: self.triton.polls >= seen + times)
        await asyncio.sleep(0.01)


@asynccontextmanager
async def bench(**statuses: EngineStatus | UpstreamBroken | None) -> AsyncIterator[Bench]:
    ledger = Ledger(time.monotonic)
    admission = Admission(ledger, AdmissionSettings(), time.monotonic)
    triton = ScriptedTriton(dict(statuses) or {"llama": STATUS})
    engines = Engines(
        cast(Triton, triton), ledger, admission, poll_s=0.01, models=tuple(triton.statuses), factors={PAGES: 1.5}
    )
    await engines.start()
    try:
        yield Bench(triton, ledger, admission, engines)
    finally:
        await engines.close()
