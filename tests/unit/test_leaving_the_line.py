"""The line as those in it leave: cancelled, out of time, turned away, dismissed, and by the dozen."""

import asyncio
import gc
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from common.errors import NeverFits, NotNow, NotReady, RequestError
from frontend.claim import Caller
from frontend.virtual_time import run
from tests.unit.gate import PAGES, Gate, steps


def test_a_cancelled_waiter_keeps_neither_place_nor_bytes_and_makes_way() -> None:
    async def test() -> None:
        gate = Gate()
        await gate.admit(pages=50)
        head = await gate.queue(pages=60)
        behind = await gate.queue(pages=50, expected_s=9)
        assert not behind.done()
        head.cancel()
        lease = await behind
        assert head.cancelled()
        assert gate.ledger.held(PAGES) == 100
        assert gate.now_s() == 0
        gate.ledger.settle(lease.id)

    run(test)


def test_a_waiter_cancelled_in_the_moment_of_its_grant_leaks_nothing() -> None:
    async def test() -> None:
        gate = Gate()
        running = await gate.admit(pages=100)
        granted = await gate.queue(pages=60)
        behind = await gate.queue(pages=60)
        gate.ledger.settle(running.id)
        assert gate.ledger.held(PAGES) == 60, "granted, though its task has not run yet"
        granted.cancel()
        lease = await behind
        assert granted.cancelled()
        assert [kept.id for kept in gate.ledger.leases()] == [lease.id]
        gate.ledger.settle(lease.id)
        assert gate.idle()

    run(test)


def test_a_waiter_whose_time_is_up_in_the_moment_of_its_grant_has_the_lease() -> None:
    async def test() -> None:
        gate = Gate()
        running = await gate.admit(pages=100)
        asyncio.get_running_loop().call_later(5, gate.ledger.settle, running.id)
        lease = await gate.admit(5.0, pages=60)
        assert gate.ledger.held(PAGES) == 60
        gate.ledger.settle(lease.id)
        assert gate.idle()

    run(test)


def test_who_has_left_is_passed_over_before_its_task_has_noticed() -> None:
    async def test() -> None:
        gate = Gate()
        running = await gate.admit(pages=100)
        left = await gate.queue(pages=60)
        behind = await gate.queue(pages=60)
        left.cancel()
        gate.ledger.settle(running.id)
        (lease,) = gate.ledger.leases()
        assert (await behind).id == lease.id

    run(test)


def test_a_waiter_learns_that_it_will_never_fit_when_the_account_shrinks() -> None:
    async def test() -> None:
        gate = Gate()
        await gate.admit(pages=50)
        big = await gate.queue(pages=60)
        small = await gate.queue(pages=5)
        gate.ledger.set_capacity(PAGES, 55)
        with pytest.raises(NeverFits):
            await big
        assert (await small).lines == {PAGES: 5}

    run(test)


def test_a_waiter_for_a_process_that_died_is_told_so() -> None:
    async def test() -> None:
        gate = Gate()
        await gate.admit(pages=100)
        waiter = await gate.queue(pages=60)
        gate.ledger.void("llama", "another boot")
        with pytest.raises(NotReady, match="restarted"):
            await waiter
        assert gate.idle()

    run(test)


def test_closed_admits_nothing_and_keeps_the_places_of_the_line() -> None:
    async def test() -> None:
        gate = Gate()
        running = await gate.admit(pages=100, expected_s=0.5)
        patient, hasty = await gate.queue(9.0, pages=60), await gate.queue(2.0, pages=60)
        gate.admission.close("the breaker is open")
        gate.ledger.settle(running.id)
        with pytest.raises(NotReady, match="the breaker is open"):
            await gate.admit(pages=1)
        with pytest.raises(NotReady, match="the breaker is open"):
            await hasty
        assert (gate.now_s(), patient.done()) == (2, False)
        gate.admission.open()
        assert (await patient).lines == {PAGES: 60}

    run(test)


def test_two_that_outrank_the_last_of_a_full_line_at_the_same_moment_both_wait() -> None:
    async def test() -> None:
        gate, urgent = Gate(), Caller("urgent", priority=1)
        await gate.admit(pages=100)
        last = await gate.queue(pages=10, body_bytes=1000)
        two = [asyncio.create_task(gate.admit(pages=10, caller=urgent, body_bytes=size)) for size in (10, 1)]
        await steps()
        assert isinstance(last.exception(), NotNow)
        assert [one.done() for one in two] == [False, False]
        for one in two:
            await cancelled(one)
        assert gate.admission.waiting == 0

    run(test)


def test_who_leaves_a_full_line_at_the_moment_somebody_outranks_it_makes_room_once() -> None:
    async def test() -> None:
        gate = Gate(max_waiting=1)
        await gate.admit(pages=100)
        last = await gate.queue(pages=10)
        urgent = asyncio.create_task(gate.admit(pages=10, caller=Caller("urgent", priority=1)))
        last.cancel()
        await steps()
        assert last.cancelled()
        assert not urgent.done()
        await cancelled(urgent)
        assert gate.admission.waiting == 0

    run(test)


@pytest.mark.parametrize("seed", range(20))
def test_a_storm_of_arrivals_and_departures_leaves_nothing_behind(seed: int) -> None:
    dice = random.Random(seed)

    async def client(gate: Gate) -> str:
        await asyncio.sleep(dice.uniform(0, 20))
        sizes: Any = {
            name: dice.randint(1, 110) for name in dice.sample(("pages", "canvas", "host"), dice.randint(1, 2))
        }
        try:
            lease = await gate.admit(dice.uniform(0, 8), dice.uniform(0.1, 5), **sizes)
        except RequestError as error:
            return error.kind.code
        try:
            await asyncio.sleep(dice.uniform(0, 4))
        finally:
            gate.ledger.settle(lease.id)
        return "done"

    async def test() -> None:
        gate = Gate(max_waiting=20)
        clients = [asyncio.create_task(client(gate)) for _ in range(150)]
        loop = asyncio.get_running_loop()
        for victim in dice.sample(clients, 60):
            loop.call_later(dice.uniform(0, 25), victim.cancel)
        for moment_s in range(25):
            loop.call_later(moment_s, gate.ledger.set_capacity, PAGES, dice.choice((0, 60, 100)))
        loop.call_later(26, gate.ledger.set_capacity, PAGES, 100)
        outcomes = await asyncio.gather(*clients, return_exceptions=True)
        assert {outcome for outcome in outcomes if isinstance(outcome, str)} == {
            "done",
            "never_fits",
            "rate_limit_exceeded",
        }
        assert all(isinstance(outcome, str | asyncio.CancelledError) for outcome in outcomes)
        assert gate.idle()

    complaints: list[dict[str, Any]] = []
    run(listening(test, complaints))
    gc.collect()
    assert complaints == []


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


def listening(
    test: Callable[[], Coroutine[Any, Any, None]], complaints: list[dict[str, Any]]
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Collects what the loop would only log, such as an error that nobody has read."""

    async def wrapped() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await test()
        gc.collect()

    return wrapped
