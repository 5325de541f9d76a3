import asyncio
import gc
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from common.errors import NeverFits, NotNow, NotReady, RequestError
from frontend.admission import Verdict
from frontend.claim import Caller
from frontend.virtual_time import run
from tests.unit.gate import CANVAS, HOST, PAGES, Gate, price, steps


def test_the_line_is_served_in_order_of_arrival() -> None:
    async def test() -> None:
        gate = Gate()
        first = await gate.admit(pages=90)
        waiters = [await gate.queue(pages=size) for size in (50, 30, 30)]
        assert gate.admission.ask(price(pages=11)).verdict is Verdict.WAIT
        gate.ledger.settle(first.id)
        await steps()
        assert [waiter.done() for waiter in waiters] == [True, True, False]
        gate.ledger.settle(waiters[1].result().id)
        assert (await waiters[2]).lines == {PAGES: 30}

    run(test)


def test_a_small_request_does_not_pass_a_large_one_that_it_would_delay() -> None:
    async def test() -> None:
        gate = Gate()
        running = [await gate.admit(pages=size, expected_s=2) for size in (60, 30)]
        large, small = await gate.queue(pages=90), await gate.queue(pages=20, expected_s=5)
        gate.ledger.settle(running[1].id)
        await steps()
        assert not large.done()
        assert not small.done(), "it fits in the 40 bytes that are left, but the large one needs them in 2 s"
        gate.ledger.settle(running[0].id)
        await steps()
        assert (large.done(), small.done()) == (True, False)

    run(test)


def test_a_small_request_passes_a_large_one_where_it_ends_before_that_can_start() -> None:
    async def test() -> None:
        gate = Gate()
        await gate.admit(pages=60, expected_s=2)
        large = await gate.queue(pages=90)
        assert gate.admission.ask(price(pages=20)).verdict is Verdict.ADMIT
        assert (await gate.admit(pages=20, expected_s=1.9)).lines == {PAGES: 20}
        late = await gate.queue(pages=20, expected_s=2.1)
        assert not large.done()
        assert not late.done()

    run(test)


def test_a_small_request_passes_a_large_one_on_bytes_that_it_will_not_need() -> None:
    async def test() -> None:
        gate = Gate()
        running = await gate.admit(pages=60, expected_s=2)
        large = await gate.queue(pages=70, expected_s=1)
        spare = await gate.admit(pages=30, expected_s=60)
        too_much = await gate.queue(pages=1, expected_s=60)
        assert not too_much.done(), "the 30 bytes beside the large one are lent already"
        gate.ledger.settle(running.id)
        assert (await large).lines == {PAGES: 70}
        assert gate.ledger.lease(spare.id) is not None

    run(test)


def test_many_small_requests_do_not_starve_a_large_one() -> None:
    async def test() -> None:
        gate = Gate(max_wait_s=60)
        loop = asyncio.get_running_loop()

        async def small() -> None:
            lease = await gate.admit(60, pages=20, expected_s=4)
            await asyncio.sleep(4)
            gate.ledger.settle(lease.id)

        crowd = []
        for _ in range(5):
            crowd.append(asyncio.create_task(small()))
            await asyncio.sleep(0.8)
        whole = await gate.queue(60, pages=100, expected_s=1)
        for _ in range(20):
            crowd.append(asyncio.create_task(small()))
            await asyncio.sleep(0.8)
        assert whole.done()
        assert whole.result().created_s < 9, "when those have ended who ran as it came"
        gate.ledger.settle(whole.result().id)
        await asyncio.gather(*crowd)
        assert loop.time() < 60

    run(test)


def test_a_request_passes_others_on_accounts_they_do_not_draw_on() -> None:
    async def test() -> None:
        gate = Gate()
        await gate.admit(pages=90)
        head = await gate.queue(pages=50, host=60)
        assert (await gate.admit(canvas=100, host=40)).lines == {CANVAS: 100, HOST: 40}
        behind = await gate.queue(host=10, canvas=10, expected_s=9)
        assert not head.done()
        assert not behind.done()

    run(test)


def test_a_higher_priority_goes_first() -> None:
    async def test() -> None:
        gate = Gate()
        running = await gate.admit(pages=100)
        waiters = [await gate.queue(pages=60, caller=Caller(priority=level)) for level in (0, 1, -1)]
        order = []
        for _ in waiters:
            gate.ledger.settle(running.id)
            await steps()
            (index,) = [at for at, waiter in enumerate(waiters) if waiter.done() and at not in order]
            order.append(index)
            running = waiters[index].result()
        assert order == [1, 0, 2]

    run(test)


def test_tenants_that_always_wait_share_in_proportion_to_their_weights() -> None:
    async def test() -> None:
        gate = Gate(max_waiting=300, max_wait_s=1e6)
        callers = [Caller("many", 1.0), Caller("few", 3.0)]
        served = dict.fromkeys(("many", "few"), 0)

        async def client(caller: Caller) -> None:
            lease = await gate.admit(1e6, pages=50, caller=caller)
            served[caller.tenant] += 1
            await asyncio.sleep(1)
            gate.ledger.settle(lease.id)

        clients = [asyncio.create_task(client(caller)) for caller in callers for _ in range(60)]
        await asyncio.sleep(20.5)
        assert served == {"many": 11, "few": 31}
        await asyncio.gather(*clients)

    run(test)


def test_a_tenant_with_a_long_line_does_not_keep_another_one_out() -> None:
    async def test() -> None:
        gate = Gate(max_waiting=5)
        await gate.admit(pages=100, expected_s=1, caller=Caller("flood"))
        flood = [await gate.queue(pages=100, caller=Caller("flood")) for _ in range(5)]
        other = await gate.queue(pages=100, caller=Caller("other"))
        with pytest.raises(NotNow, match="others go before it"):
            await flood[-1]
        assert gate.admission.waiting == 5
        assert not other.done()

    run(test)


def test_the_bodies_of_those_that_wait_are_bounded_in_bytes() -> None:
    async def test() -> None:
        gate = Gate()
        await gate.admit(pages=100)
        first = await gate.queue(pages=1, body_bytes=900)
        with pytest.raises(NotNow, match="1 requests wait already"):
            await gate.admit(pages=1, body_bytes=101)
        first.cancel()
        await steps()
        assert not (await gate.queue(pages=1, body_bytes=101)).done()

    run(test)


def test_two_models_do_not_wait_for_each_other() -> None:
    async def test() -> None:
        gate = Gate()
        await gate.admit(pages=100)
        await gate.queue(pages=10)
        assert (await gate.admit(canvas=100, host=100)).lines == {CANVAS: 100, HOST: 100}

    run(test)


def test_a_full_line_refuses_the_next_one() -> None:
    async def test() -> None:
        gate = Gate(max_waiting=2)
        await gate.admit(pages=100, expected_s=2)
        await gate.queue(pages=10)
        await gate.queue(pages=10)
        with pytest.raises(NotNow, match="2 requests wait already") as caught:
            await gate.admit(pages=10)
        assert caught.value.retry_after_s == 2

    run(test)


def test_without_a_line_everything_is_now_or_not() -> None:
    async def test() -> None:
        gate = Gate(max_waiting=0)
        await gate.admit(pages=100)
        with pytest.raises(NotNow):
            await gate.admit(pages=1)

    run(test)


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
