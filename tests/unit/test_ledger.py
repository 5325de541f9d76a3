import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from common.errors import NeverFits, NotNow, NotReady, RequestError
from common.wire import Statement
from estimator.price import Line, Price
from frontend.ledger import LeaseState, Ledger, LedgerError

ACCOUNTS = ("llama.pages", "unet.canvas", "host")
MODELS = ("llama", "unet")
EXAMPLES = int(os.environ.get("VRAMGATE_TEST_LEDGER_EXAMPLES", "150"))


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def price(**lines: int) -> Price:
    return Price(tuple(Line(name.replace("_", "."), size, "because") for name, size in lines.items()))


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
    assert [end_s for end_s, _, _ in ledger.ends()] == [0, 1, 3, 5]
    ledger.settle(leases[2].id)
    ledger.check()
    assert [end_s for end_s, _, _ in ledger.ends()] == [0, 1, 5]


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


LINES = st.dictionaries(st.sampled_from(ACCOUNTS), st.integers(0, 120), max_size=3)
AMOUNT = st.integers(0, 150)


class Bank(RuleBasedStateMachine):
    """The ledger beside a model of it that only adds up; the two laws are the invariants."""

    leases = Bundle("leases")
    ended = Bundle("ended")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.ledger = Ledger(self.clock)
        self.capacity: dict[str, int] = {}
        self.unleased = dict.fromkeys(ACCOUNTS, 0)
        self.living: dict[str, tuple[str, str, dict[str, int]]] = {}
        """Lease id -> model, boot id, lines."""
        self.boots = dict.fromkeys(MODELS, 0)

    def _used(self, account: str) -> int:
        return self.unleased[account] + sum(lines.get(account, 0) for _, _, lines in self.living.values())

    @initialize(capacities=st.dictionaries(st.sampled_from(ACCOUNTS), AMOUNT))
    def open(self, capacities: dict[str, int]) -> None:
        for account, size in capacities.items():
            self.resize(account, size)

    @rule(account=st.sampled_from(ACCOUNTS), size=AMOUNT)
    def resize(self, account: str, size: int) -> None:
        self.ledger.set_capacity(account, size)
        self.capacity[account] = size

    @rule(account=st.sampled_from(ACCOUNTS), size=st.integers(0, 60))
    def use_without_a_lease(self, account: str, size: int) -> None:
        if account in self.capacity:
            self.ledger.report_unleased(account, size)
            self.unleased[account] = size

    @rule(seconds=st.floats(0, 100))
    def pass_time(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @rule(target=leases, model=st.sampled_from(MODELS), lines=LINES, expected_s=st.floats(0, 60), stale=st.booleans())
    def reserve(self, model: str, lines: dict[str, int], expected_s: float, stale: bool) -> object:
        boot = self.boots[model] - (stale and self.boots[model] > 0)
        known = lines.keys() <= self.capacity.keys() and boot == self.boots[model]
        rest = {account: self.capacity.get(account, 0) - self._used(account) for account in lines}
        fits = known and all(size <= max(0, rest[account]) for account, size in lines.items())
        too_big = known and any(size > self.capacity[account] for account, size in lines.items())
        asked = Price(tuple(Line(account, size, "x") for account, size in lines.items()))
        if not fits:
            before = self.ledger.accounts(), self.ledger.leases()
            with pytest.raises(NeverFits if too_big else NotNow if known else NotReady):
                self.ledger.reserve(model, asked, f"boot-{boot}", expected_s)
            assert (self.ledger.accounts(), self.ledger.leases()) == before
            return multiple()
        lease = self.ledger.reserve(model, asked, f"boot-{boot}", expected_s)
        self.living[lease.id] = (model, lease.boot_id, lines)
        return lease.id

    @rule(lease_id=leases)
    def start(self, lease_id: str) -> None:
        lease = self.ledger.lease(lease_id)
        sendable = lease is not None and lease.state is not LeaseState.ABANDONED
        assert self.ledger.start(lease_id) == sendable

    @rule(lease_id=leases)
    def abandon(self, lease_id: str) -> None:
        assert self.ledger.abandon(lease_id) == (lease_id in self.living)

    @rule(target=ended, lease_id=consumes(leases))
    def settle(self, lease_id: str) -> str:
        assert self.ledger.settle(lease_id) == (lease_id in self.living)
        self.living.pop(lease_id, None)
        return lease_id

    @rule(lease_id=ended)
    def settle_again(self, lease_id: str) -> None:
        assert not self.ledger.settle(lease_id)

    @rule(model=st.sampled_from(MODELS), restarted=st.booleans())
    def void(self, model: str, restarted: bool) -> None:
        self.boots[model] += restarted
        boot_id = f"boot-{self.boots[model]}"
        dead = {key for key, (owner, boot, _) in self.living.items() if owner == model and boot != boot_id}
        assert set(self.ledger.void(model, boot_id)) == dead
        for lease_id in dead:
            del self.living[lease_id]

    @invariant()
    def the_books_balance(self) -> None:
        self.ledger.check()
        assert {lease.id for lease in self.ledger.leases()} == self.living.keys()

    @invariant()
    def every_account_says_what_is_used_of_it(self) -> None:
        for account, capacity_bytes in self.capacity.items():
            rest = capacity_bytes - self._used(account)
            assert self.ledger.booked(account) == self._used(account)
            assert self.ledger.available(account) == max(0, rest)
        assert {view.name for view in self.ledger.accounts()} == self.capacity.keys()

    def teardown(self) -> None:
        for lease_id in tuple(self.living):
            self.ledger.settle(lease_id)
        assert all(view.held_bytes == 0 for view in self.ledger.accounts())
        assert list(self.ledger.ends()) == []


Bank.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestBank = Bank.TestCase
