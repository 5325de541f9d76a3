from dataclasses import replace

from common.errors import UpstreamBroken
from common.wire import ActiveLease, CancelOutcome
from frontend.ledger import LeaseState
from tests.unit.engine_bench import PAGES, STATUS, bench
from tests.unit.web import run, until


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
