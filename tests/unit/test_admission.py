import asyncio

import pytest

from common.errors import NeverFits, NotNow, NotReady
from common.sections import Admission as AdmissionSettings
from frontend.account import Demand
from frontend.admission import Admission, Verdict
from frontend.claim import Claim
from frontend.ledger import Ledger
from frontend.virtual_time import run
from tests.unit.gate import CANVAS, HOST, PAGES, Gate, price


def test_the_verdict_says_now_soon_later_or_never() -> None:
    async def test() -> None:
        gate = Gate()
        await gate.admit(pages=60, expected_s=4)
        asked = {size: gate.admission.ask(price(pages=size)) for size in (40, 41, 100, 101)}
        assert [decision.verdict for decision in asked.values()] == [
            Verdict.ADMIT,
            Verdict.WAIT,
            Verdict.WAIT,
            Verdict.NEVER,
        ]
        assert [decision.retry_after_s for decision in asked.values()] == [None, 4.0, 4.0, None]
        assert gate.admission.ask(price(pages=41), wait_s=5.9).verdict is Verdict.NOT_NOW
        assert gate.admission.ask(price(pages=41), wait_s=6.0).verdict is Verdict.WAIT
        decision = asked[41]
        assert decision.demand == Demand(PAGES, 41, 40, 100)
        assert gate.ledger.held(PAGES) == 60, "asking takes nothing"

    run(test)


def test_the_account_that_is_shortest_decides() -> None:
    async def test() -> None:
        gate = Gate()
        await gate.admit(host=95, canvas=10)
        assert gate.admission.ask(price(canvas=80, host=6)).account == HOST
        assert gate.admission.ask(price(canvas=80, host=5)).account == HOST
        assert gate.admission.ask(price(canvas=80, host=1)).account == CANVAS
        assert gate.admission.ask(price()).verdict is Verdict.ADMIT

    run(test)


def test_a_price_above_the_capacity_is_refused_for_good_with_both_numbers() -> None:
    async def test() -> None:
        gate = Gate()
        with pytest.raises(NeverFits) as caught:
            await gate.admit(pages=101)
        assert caught.value.numbers == {"price_bytes": 101, "available_bytes": 100, "capacity_bytes": 100}
        assert caught.value.retry_after_s is None

    run(test)


def test_a_wait_longer_than_allowed_is_refused_at_once() -> None:
    async def test() -> None:
        gate = Gate(max_wait_s=10)
        await gate.admit(pages=60, expected_s=12)
        for wait_s in (0.0, 5.0, 600.0):
            with pytest.raises(NotNow) as caught:
                await gate.admit(wait_s, pages=60)
            assert caught.value.retry_after_s == 12
            assert caught.value.numbers == {"price_bytes": 60, "available_bytes": 40, "capacity_bytes": 100}
            assert "12.0 s" in caught.value.message
        assert gate.now_s() == 0
        assert gate.admission.waiting == 0

    run(test)


def test_retry_after_reads_the_ends_of_leases_and_what_waits_in_front() -> None:
    async def test() -> None:
        gate = Gate()
        for expected_s in (1, 2, 4, 8):
            await gate.admit(pages=25, expected_s=expected_s)
        assert gate.admission.ask(price(pages=25)).retry_after_s == 1
        assert gate.admission.ask(price(pages=26)).retry_after_s == 2
        assert gate.admission.ask(price(pages=100)).retry_after_s == 8
        await gate.queue(pages=50, expected_s=3)
        assert gate.admission.ask(price(pages=25)).retry_after_s == 1 + 50 * 3 / 100, "150 byte-seconds of 100 bytes"
        assert gate.admission.ask(price(pages=50)).retry_after_s == 2 + 50 * 3 / 100

    run(test)


def test_a_lease_that_outlives_its_expected_end_is_expected_to_go_on_for_a_while() -> None:
    async def test() -> None:
        gate = Gate()
        await gate.admit(pages=60, expected_s=2)
        await gate.admit(pages=40, expected_s=30)
        await asyncio.sleep(4)
        assert gate.admission.ask(price(pages=60)).retry_after_s == 2, "half of the 4 s that it has lasted"
        assert gate.admission.ask(price(pages=61)).retry_after_s == 26
        gate.ledger.check()

    run(test)


def test_nobody_knows_when_bytes_without_a_lease_come_back_so_waiting_is_allowed() -> None:
    async def test() -> None:
        gate = Gate(max_wait_s=7)
        gate.ledger.report_unleased(PAGES, 50)
        asked = gate.admission.ask(price(pages=60))
        assert (asked.verdict, asked.retry_after_s) == (Verdict.WAIT, 7)
        waiter = await gate.queue(pages=60)
        await asyncio.sleep(3)
        gate.ledger.report_unleased(PAGES, 0)
        assert (await waiter).lines == {PAGES: 60}
        assert gate.now_s() == 3

    run(test)


def test_a_waiter_that_gets_nothing_is_refused_when_its_time_is_up() -> None:
    async def test() -> None:
        gate = Gate()
        await gate.admit(pages=100, expected_s=1)
        with pytest.raises(NotNow, match=r"after waiting for 4\.0 s") as caught:
            await gate.admit(4.0, pages=30)
        assert gate.now_s() == 4
        assert caught.value.retry_after_s == 2, "half of the 4 s that the lease has lasted"
        assert gate.admission.waiting == 0

    run(test)


def test_an_account_that_is_not_open_is_not_ready() -> None:
    async def test() -> None:
        ledger = Ledger(asyncio.get_running_loop().time)
        admission = Admission(ledger, AdmissionSettings(), asyncio.get_running_loop().time)
        with pytest.raises(NotReady):
            await admission.admit(Claim("llama", price(pages=1), "boot", 1), 1)

    run(test)
