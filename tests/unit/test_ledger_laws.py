"""The two laws of the ledger, as invariants of a state machine.

``VRAMGATE_TEST_LEDGER_EXAMPLES=1000000`` makes a long run of it.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from common.errors import NeverFits, NotNow, NotReady
from estimator.price import Line, Price
from frontend.ledger import LeaseState, Ledger
from tests.unit.books import Clock

ACCOUNTS = ("llama.pages", "unet.canvas", "host")
MODELS = ("llama", "unet")
EXAMPLES = int(os.environ.get("VRAMGATE_TEST_LEDGER_EXAMPLES", "150"))

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
        assert all(list(self.ledger.ends(account)) == [] for account in self.capacity)


Bank.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestBank = Bank.TestCase
