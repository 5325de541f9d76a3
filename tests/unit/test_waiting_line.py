import asyncio

import pytest

from common.errors import NotNow
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


def test_a_small_request_at_the_end_of_a_long_line_does_not_put_the_line_before_others() -> None:
    async def test() -> None:
        gate, greedy, other = Gate(), Caller("greedy"), Caller("other")
        running = await gate.admit(pages=70, expected_s=2)
        line = [await gate.queue(pages=40, caller=greedy) for _ in range(5)]
        assert (await gate.admit(pages=10, caller=greedy)).lines == {PAGES: 10}
        late = await gate.queue(pages=40, caller=other)
        gate.ledger.settle(running.id)
        await steps()
        assert [waiter.done() for waiter in [*line[:2], late]] == [True, False, True]

    run(test)


def test_what_an_urgent_tenant_gets_does_not_put_a_long_line_before_others() -> None:
    async def test() -> None:
        gate, greedy, other = Gate(max_wait_s=100), Caller("greedy"), Caller("other")
        urgent = Caller("urgent", priority=1)
        running = await gate.admit(pages=100, caller=urgent)
        line = [await gate.queue(pages=50, caller=greedy, wait_s=90) for _ in range(4)]
        for _ in range(5):
            following = await gate.queue(pages=100, caller=urgent)
            gate.ledger.settle(running.id)
            running = await following
        late = await gate.queue(pages=50, caller=other, wait_s=90)
        gate.ledger.settle(running.id)
        await steps()
        assert [waiter.done() for waiter in [*line[:2], late]] == [True, False, True]

    run(test)
