import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from common.errors import NotReady, UpstreamBroken
from common.settings import Admission as AdmissionSettings
from common.wire import ActiveLease, Breaker, CancelOutcome, EngineStatus
from estimator.price import Line, Price
from frontend.admission import Admission
from frontend.engines import Engines
from frontend.ledger import Lease, LeaseState, Ledger
from frontend.triton import Triton

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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the condition is anything at all
            await asyncio.sleep(0.005)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


def test_the_account_follows_the_engine() -> None:
    async def test() -> None:
        async with bench(llama=replace(STATUS, unleased_bytes=30)) as room:
            with pytest.raises(NotReady, match="not answered yet"):
                room.engines.status("llama")
            await until(lambda: room.engines.ready()[0])
            assert room.engines.status("llama").boot_id == "boot-1"
            assert (room.ledger.capacity(PAGES), room.ledger.available(PAGES)) == (1500, 1470)
            room.triton.statuses["llama"] = replace(STATUS, capacity_bytes=10)
            await until(lambda: room.ledger.capacity(PAGES) == 15)

    run(test)


def test_an_engine_that_is_not_ready_is_known_but_not_used() -> None:
    async def test() -> None:
        async with bench(llama=replace(STATUS, ready=False, reason="no step for 31 s")) as room:
            await until(lambda: room.ledger.capacity(PAGES) > 0)
            assert room.engines.status("llama").reason == "no step for 31 s"
            with pytest.raises(NotReady, match="no step for 31 s"):
                room.engines.require("llama")
            assert room.engines.ready() == (False, {"llama": "no step for 31 s"})

    run(test)


def test_one_lost_poll_is_forgiven_but_not_several() -> None:
    async def test() -> None:
        async with bench() as room:
            await until(lambda: room.engines.ready()[0])
            room.triton.statuses["llama"] = UpstreamBroken("Stub process 'llama_0_0' is not healthy.")
            await room.polled(1)
            assert room.engines.ready()[0]
            await until(lambda: not room.engines.ready()[0])
            with pytest.raises(NotReady, match="not healthy"):
                room.engines.status("llama")
            assert room.ledger.capacity(PAGES) == 1500
            room.triton.statuses["llama"] = STATUS
            await until(lambda: room.engines.ready()[0])

    run(test)


def test_an_engine_that_hangs_does_not_hide_the_other() -> None:
    async def test() -> None:
        async with bench(llama=None, unet=UNET) as room:
            await room.polled(5)
            assert room.engines.status("unet").ready
            assert room.engines.ready() == (False, {"llama": "it has not answered yet"})

    run(test)


@pytest.mark.parametrize("nonsense", [replace(STATUS, capacity_bytes=-1), UNET])
def test_a_status_that_makes_no_sense_is_no_answer(nonsense: EngineStatus) -> None:
    async def test() -> None:
        async with bench(llama=nonsense) as room:
            await room.polled(4)
            assert not room.engines.ready()[0]
            room.triton.statuses["llama"] = STATUS
            await until(lambda: room.engines.ready()[0])

    run(test)


def test_a_new_process_voids_the_leases_of_the_old_one() -> None:
    async def test() -> None:
        void: list[str] = []
        async with bench() as room:
            room.engines.on_void.append(void.extend)
            await until(lambda: room.engines.ready()[0])
            running, left = room.lease(), room.lease()
            room.triton.outcome = UpstreamBroken("gone")
            room.engines.abandon(left.id)
            room.triton.statuses["llama"] = replace(STATUS, boot_id="boot-2")
            await until(lambda: room.ledger.held(PAGES) == 0)
            assert void == [running.id, left.id]
            assert room.engines.require("llama").boot_id == "boot-2"
            room.ledger.check()

    run(test)


def test_work_that_never_came_ends_its_lease_with_the_cancel() -> None:
    async def test() -> None:
        async with bench() as room:
            await until(lambda: room.engines.ready()[0])
            lease = room.lease()
            room.engines.abandon(lease.id)
            room.engines.abandon(lease.id)
            assert room.ledger.held(PAGES) == 100
            await until(lambda: room.ledger.held(PAGES) == 0)
            assert room.triton.cancels == [lease.id]

    run(test)


def test_work_that_stops_later_holds_its_lease_until_then() -> None:
    async def test() -> None:
        async with bench() as room:
            await until(lambda: room.engines.ready()[0])
            lease = room.lease()
            room.triton.outcome = CancelOutcome.CANCELLED
            room.triton.statuses["llama"] = replace(STATUS, leases=(ActiveLease(lease.id, 100, True),))
            room.engines.abandon(lease.id)
            await room.polled(4)
            assert room.ledger.leases(LeaseState.ABANDONED)[0].id == lease.id
            room.triton.statuses["llama"] = STATUS
            await until(lambda: room.ledger.held(PAGES) == 0)
            assert room.triton.cancels == [lease.id]

    run(test)


def test_a_status_written_before_the_cancel_was_heard_ends_nothing() -> None:
    async def test() -> None:
        async with bench() as room:
            await until(lambda: room.engines.ready()[0])
            room.triton.on_their_way.clear()
            await room.polled(1)
            lease = room.lease()
            room.triton.outcome = CancelOutcome.CANCELLED
            room.engines.abandon(lease.id)
            await until(lambda: bool(room.triton.cancels))
            room.triton.statuses["llama"] = replace(STATUS, leases=(ActiveLease(lease.id, 100, True),))
            room.triton.on_their_way.set()
            await room.polled(2)
            assert room.ledger.held(PAGES) == 100, "the first of these statuses does not list work that came after it"

    run(test)


def test_a_cancel_that_fails_is_repeated_and_ends_nothing_until_then() -> None:
    async def test() -> None:
        async with bench(llama=STATUS) as room:
            await until(lambda: room.engines.ready()[0])
            lease = room.lease()
            room.triton.outcome = UpstreamBroken("not now")
            room.engines.abandon(lease.id)
            await room.polled(4)
            assert room.ledger.held(PAGES) == 100, "no cancel got through, so its work may still arrive"
            room.triton.outcome = CancelOutcome.CANCELLED
            await until(lambda: room.ledger.held(PAGES) == 0)
            assert len(room.triton.cancels) > 1

    run(test)


def test_a_lease_in_use_is_never_ended_by_a_status() -> None:
    async def test() -> None:
        async with bench() as room:
            await until(lambda: room.engines.ready()[0])
            lease = room.lease()
            await room.polled(4)
            assert room.ledger.lease(lease.id) is not None
            assert room.triton.cancels == []

    run(test)


def test_work_of_an_earlier_frontend_is_counted_until_it_ends() -> None:
    async def test() -> None:
        async with bench(llama=replace(STATUS, leases=(ActiveLease("old", 200),))) as room:
            await until(lambda: room.engines.ready()[0])
            assert room.ledger.available(PAGES) == 1300
            ours = room.lease()
            room.triton.statuses["llama"] = replace(STATUS, leases=(ActiveLease(ours.id, 100),))
            await until(lambda: room.ledger.available(PAGES) == 1400)

    run(test)


def test_an_open_breaker_closes_admission_until_it_recovers() -> None:
    async def test() -> None:
        async with bench(llama=STATUS, unet=UNET) as room:
            await until(lambda: room.engines.ready()[0])
            room.triton.statuses["unet"] = replace(UNET, breaker=Breaker.OPEN)
            await until(lambda: "unet" in (room.admission.closed or ""))
            assert not room.engines.ready()[0]
            room.triton.statuses["unet"] = UNET
            await until(lambda: room.admission.closed is None)

    run(test)


def test_a_stop_is_not_undone_by_a_healthy_engine() -> None:
    async def test() -> None:
        async with bench() as room:
            await until(lambda: room.engines.ready()[0])
            room.engines.stop("shutting down")
            await room.polled(3)
            assert room.admission.closed == "shutting down"
            assert room.engines.ready() == (False, {"server": "shutting down"})

    run(test)


def test_drain_waits_for_abandoned_work_but_not_for_ever() -> None:
    async def test() -> None:
        async with bench() as room:
            await until(lambda: room.engines.ready()[0])
            room.engines.abandon(room.lease().id)
            await room.engines.drain(5)
            assert room.ledger.held(PAGES) == 0
            room.triton.outcome = UpstreamBroken("gone")
            room.engines.abandon(room.lease().id)
            await room.engines.drain(0.05)
            assert room.ledger.held(PAGES) == 100

    run(test)
