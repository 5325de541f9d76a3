from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import NeverFits, NotNow, NotReady, RequestError
from common.wire import Statement
from estimator.price import Line, Price
from frontend.ledger import LeaseState, Ledger, LedgerError
from tests.unit.books import Clock, price


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    made = Ledger(clock)
    made.set_capacity("llama.pages", 100)
    made.set_capacity("host", 50)
    return made


def test_a_reserve_takes_all_lines_or_none(ledger: Ledger) -> None:
    ledger.reserve("unet", price(llama_pages=60, host=10), "b", 1)
    with pytest.raises(NotNow):
        ledger.reserve("unet", price(host=20, llama_pages=41), "b", 1)
    assert (ledger.held("llama.pages"), ledger.held("host")) == (60, 10)
    ledger.reserve("unet", price(llama_pages=40, host=40), "b", 1)
    assert (ledger.available("llama.pages"), ledger.available("host")) == (0, 0)


def test_lines_of_one_account_are_charged_together(ledger: Ledger) -> None:
    twice = Price((Line("host", 30, "image"), Line("host", 30, "mask")))
    assert ledger.never_fits(twice.by_account())
    with pytest.raises(NeverFits):
        ledger.reserve("unet", twice, "b", 1)


@pytest.mark.parametrize(
    ("asked", "error", "numbers"),
    [
        ({"llama_pages": 101}, NeverFits, (101, 40, 100)),
        ({"llama_pages": 41}, NotNow, (41, 40, 100)),
        ({"host": 51, "llama_pages": 41}, NeverFits, (51, 50, 50)),
    ],
)
def test_a_refusal_names_price_rest_and_capacity(
    ledger: Ledger, asked: dict[str, int], error: type[RequestError], numbers: tuple[int, int, int]
) -> None:
    ledger.reserve("llama", price(llama_pages=60), "b", 1)
    with pytest.raises(error) as caught:
        ledger.reserve("llama", price(**asked), "b", 1)
    assert tuple(caught.value.numbers.values()) == numbers
    assert all(f"{number}" in caught.value.message for number in (numbers[0], numbers[2]))


def test_what_holds_bytes_without_a_lease_counts_against_the_capacity(ledger: Ledger) -> None:
    ledger.report_unleased("llama.pages", 70)
    assert not ledger.fits({"llama.pages": 31})
    assert ledger.booked("llama.pages") == 70
    ledger.report_unleased("llama.pages", 0)
    assert ledger.fits({"llama.pages": 100})


def test_a_shrunken_account_admits_nothing_until_it_is_paid_down(ledger: Ledger) -> None:
    first = ledger.reserve("llama", price(llama_pages=60), "b", 1)
    second = ledger.reserve("llama", price(llama_pages=30), "b", 1)
    ledger.set_capacity("llama.pages", 50)
    (view,) = (view for view in ledger.accounts() if view.name == "llama.pages")
    assert (view.overdraft_bytes, view.available_bytes, view.held_bytes) == (40, 0, 90)
    ledger.settle(second.id)
    with pytest.raises(NotNow):
        ledger.reserve("llama", price(llama_pages=1), "b", 1)
    ledger.settle(first.id)
    ledger.reserve("llama", price(llama_pages=50), "b", 1)
    ledger.check()


def test_nothing_fits_an_account_that_is_not_open_and_nothing_is_said_of_never(ledger: Ledger) -> None:
    assert not ledger.fits({"unet.canvas": 1})
    assert not ledger.never_fits({"unet.canvas": 1})
    with pytest.raises(NotReady, match=r"unet\.canvas"):
        ledger.reserve("unet", price(unet_canvas=1), "b", 1)


def test_settling_twice_pays_back_once(ledger: Ledger) -> None:
    lease = ledger.reserve("llama", price(llama_pages=60), "b", 1)
    ledger.reserve("llama", price(llama_pages=20), "b", 1)
    assert ledger.settle(lease.id)
    assert not ledger.settle(lease.id)
    assert not ledger.settle("never heard of")
    assert ledger.held("llama.pages") == 20


def test_an_abandoned_lease_counts_until_it_is_settled(ledger: Ledger, clock: Clock) -> None:
    lease = ledger.reserve("llama", price(llama_pages=60), "b", 30)
    assert ledger.start(lease.id)
    clock.now_s = 2.0
    assert ledger.abandon(lease.id)
    assert ledger.held("llama.pages") == 60
    (kept,) = ledger.leases(LeaseState.ABANDONED)
    assert kept.expected_end_s == 3.0
    assert not ledger.start(lease.id), "abandoned work must not be sent"
    assert ledger.settle(lease.id)
    assert ledger.held("llama.pages") == 0
    assert not ledger.abandon(lease.id)


def test_a_restarted_engine_voids_what_its_old_process_held_and_nothing_else(ledger: Ledger) -> None:
    old = ledger.reserve("llama", price(llama_pages=60), "boot-1", 1)
    other = ledger.reserve("unet", price(host=10), "boot-1", 1)
    assert ledger.void("llama", "boot-2") == (old.id,)
    new = ledger.reserve("llama", price(llama_pages=60), "boot-2", 1)
    assert ledger.void("llama", "boot-2") == ()
    assert {lease.id for lease in ledger.leases()} == {other.id, new.id}
    assert not ledger.settle(old.id)
    assert not ledger.start(old.id)
    assert ledger.held("llama.pages") == 60


def test_a_price_for_a_dead_process_is_not_charged_to_the_living(ledger: Ledger) -> None:
    ledger.void("llama", "boot-2")
    with pytest.raises(NotReady, match="restarted"):
        ledger.reserve("llama", price(llama_pages=1), "boot-1", 1)


@pytest.mark.parametrize(
    "release",
    [
        lambda ledger, lease_id: ledger.settle(lease_id),
        lambda ledger, lease_id: ledger.void("llama", "b2"),
        lambda ledger, lease_id: ledger.set_capacity("llama.pages", 200),
        lambda ledger, lease_id: ledger.report_unleased("llama.pages", 0),
    ],
)
def test_everything_that_frees_bytes_wakes_who_waits(ledger: Ledger, release: Callable[[Ledger, str], object]) -> None:
    lease = ledger.reserve("llama", price(llama_pages=60), "b", 1)
    ledger.report_unleased("llama.pages", 10)
    before, seen = ledger.available("llama.pages"), list[int]()
    ledger.on_release.append(lambda: seen.append(ledger.available("llama.pages")))
    release(ledger, lease.id)
    assert len(seen) == 1
    assert seen[0] > before


def test_what_an_engine_held_beyond_its_quote_is_added_up(ledger: Ledger) -> None:
    for held_bytes in (60, 70, 50):
        lease = ledger.reserve("llama", price(llama_pages=60), "b", 1)
        ledger.settle(lease.id, Statement(lease.id, "llama", 60, held_bytes, 0))
    assert ledger.overrun_bytes == 10


@pytest.mark.parametrize("act", [Ledger.set_capacity, Ledger.report_unleased])
def test_a_negative_amount_is_refused(ledger: Ledger, act: Callable[[Ledger, str, int], None]) -> None:
    with pytest.raises(ValueError, match="-1"):
        act(ledger, "host", -1)


def test_ends_come_soonest_first(ledger: Ledger) -> None:
    leases = [ledger.reserve("llama", price(llama_pages=1), "b", seconds) for seconds in (5, 1, 3, float("nan"))]
    assert [end_s for end_s, _, _ in ledger.ends("llama.pages")] == [0, 1, 3, 5]
    ledger.settle(leases[2].id)
    ledger.check()
    assert [end_s for end_s, _, _ in ledger.ends("llama.pages")] == [0, 1, 5]


def test_books_that_do_not_balance_are_printed_whole(ledger: Ledger) -> None:
    lease = ledger.reserve("llama", price(llama_pages=60, host=5), "b", 1)
    ledger.check()
    ledger._accounts["llama.pages"].held_bytes -= 1
    with pytest.raises(LedgerError) as caught:
        ledger.check()
    text = str(caught.value)
    assert "llama.pages: capacity 100 = held 59 + unleased 0 + available 41 - overdraft 0" in text
    assert f"{lease.id} llama reserved 60" in text
    assert f"{lease.id} llama reserved 5" in text


@given(st.integers(0, 200), st.integers(0, 200), st.integers(0, 200))
def test_the_equation_of_an_account_holds_whatever_the_capacity_becomes(
    capacity_bytes: int, unleased_bytes: int, later_bytes: int
) -> None:
    ledger = Ledger(Clock())
    ledger.set_capacity("host", capacity_bytes)
    ledger.report_unleased("host", unleased_bytes)
    ledger.set_capacity("host", later_bytes)
    (view,) = ledger.accounts()
    used_bytes = view.held_bytes + view.unleased_bytes
    assert view.capacity_bytes == used_bytes + view.available_bytes - view.overdraft_bytes
    assert 0 in (view.available_bytes, view.overdraft_bytes)
