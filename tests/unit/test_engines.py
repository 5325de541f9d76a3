from dataclasses import replace

import pytest

from common.errors import NotReady, UpstreamBroken
from common.wire import ActiveLease, Breaker, CancelOutcome, EngineStatus
from frontend.ledger import LeaseState
from tests.unit.engine_bench import PAGES, STATUS, UNET, bench
from tests.unit.web import run, until


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


def test_an_engine_that_is_being_restarted_takes_no_work_until_it_answers() -> None:
    async def test() -> None:
        async with bench() as room:
            await until(lambda: room.engines.ready()[0])
            room.triton.on_their_way.clear()
            await room.polled(1)
            room.engines.explain("llama", "restarting, try 1")
            assert room.engines.ready() == (False, {"llama": "restarting, try 1"})
            with pytest.raises(NotReady, match="restarting, try 1"):
                room.engines.require("llama")
            room.triton.on_their_way.set()
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


def test_a_lease_in_use_is_never_ended_by_a_status() -> None:
    async def test() -> None:
        async with bench() as room:
            await until(lambda: room.engines.ready()[0])
            lease = room.lease()
            await room.polled(4)
            assert room.ledger.lease(lease.id) is not None
            assert room.triton.cancels == []

    run(test)


def test_work_of_an_earlier_frontend_is_taken_over_until_it_ends() -> None:
    old = ActiveLease("old", 100, lines={PAGES: 300, "host": 40, "no such account": 7})

    async def test() -> None:
        async with bench(llama=replace(STATUS, unleased_bytes=50, leases=(old,))) as room:
            room.ledger.set_capacity("host", 100)
            room.triton.outcome = CancelOutcome.CANCELLED
            await until(lambda: room.triton.cancels == ["old"])
            assert room.ledger.available(PAGES) == 1500 - 50 - 300, "once, as it was reserved, however little is in use"
            assert room.ledger.available("host") == 60
            assert [(lease.id, lease.state) for lease in room.ledger.leases()] == [("old", LeaseState.ABANDONED)]
            ours = room.lease()
            late = ActiveLease("late", 30)
            room.triton.statuses["llama"] = replace(STATUS, leases=(ActiveLease(ours.id, 100), late))
            await until(lambda: room.ledger.lease("late") is not None and room.ledger.lease("old") is None)
            assert room.ledger.available(PAGES) == 1500 - 100 - 30
            room.triton.statuses["llama"] = replace(STATUS, leases=(ActiveLease(ours.id, 100),))
            await until(lambda: room.ledger.leases() == (room.ledger.lease(ours.id),))
            assert (room.ledger.available(PAGES), room.ledger.available("host")) == (1400, 100)
            room.ledger.check()

    run(test)


def test_work_that_is_taken_over_goes_with_its_process() -> None:
    async def test() -> None:
        async with bench(llama=replace(STATUS, leases=(ActiveLease("old", 2000),))) as room:
            room.triton.outcome = UpstreamBroken("not now")
            await until(lambda: room.ledger.held(PAGES) == 2000)
            assert room.ledger.balance(PAGES) == -500, "it was granted, so it counts, also where it no longer fits"
            room.triton.statuses["llama"] = replace(STATUS, boot_id="boot-2")
            await until(lambda: room.ledger.held(PAGES) == 0)
            room.ledger.check()

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


def test_an_accident_at_one_poll_does_not_end_the_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with bench() as room:
            await until(lambda: room.engines.ready()[0])
            room.triton.statuses["llama"] = replace(STATUS, breaker=Breaker.OPEN)
            await until(lambda: room.admission.closed is not None)
            with monkeypatch.context() as broken:
                broken.setattr(room.admission, "open", lambda: 1 / 0)
                room.triton.statuses["llama"] = STATUS
                await room.polled(2)
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
