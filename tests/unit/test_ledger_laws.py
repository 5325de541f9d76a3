"""The two laws of the ledger, as invariants of a state machine, and over many random walks.

``VRAMGATE_TEST_LEDGER_EXAMPLES=5000`` makes a longer run of the machine, ``python -m loadtests.ledger_walk 1000000``
one of the walks.
"""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from loadtests.ledger_walk import ACCOUNTS, MODELS, LedgerModel, violations

EXAMPLES = int(os.environ.get("VRAMGATE_TEST_LEDGER_EXAMPLES", "60"))
WALKS = 5000

LINES = st.dictionaries(st.sampled_from(ACCOUNTS), st.integers(0, 120), max_size=3)
AMOUNT = st.integers(0, 150)


class Bank(RuleBasedStateMachine):
    """Finds the shortest story in which a law is broken."""

    leases = Bundle("leases")
    ended = Bundle("ended")

    def __init__(self) -> None:
        super().__init__()
        self.model = LedgerModel()

    @initialize(capacities=st.dictionaries(st.sampled_from(ACCOUNTS), AMOUNT))
    def open(self, capacities: dict[str, int]) -> None:
        for account, size in capacities.items():
            self.model.resize(account, size)

    @rule(account=st.sampled_from(ACCOUNTS), size=AMOUNT)
    def resize(self, account: str, size: int) -> None:
        self.model.resize(account, size)

    @rule(account=st.sampled_from(ACCOUNTS), size=st.integers(0, 60))
    def use_without_a_lease(self, account: str, size: int) -> None:
        self.model.use_without_a_lease(account, size)

    @rule(seconds=st.floats(0, 100))
    def pass_time(self, seconds: float) -> None:
        self.model.now_s += seconds

    @rule(target=leases, model=st.sampled_from(MODELS), lines=LINES, expected_s=st.floats(0, 60), stale=st.booleans())
    def reserve(self, model: str, lines: dict[str, int], expected_s: float, stale: bool) -> object:
        return self.model.reserve(model, lines, expected_s, stale) or multiple()

    @rule(lease_id=leases)
    def start(self, lease_id: str) -> None:
        self.model.start(lease_id)

    @rule(lease_id=leases)
    def abandon(self, lease_id: str) -> None:
        self.model.abandon(lease_id)

    @rule(target=ended, lease_id=consumes(leases))
    def settle(self, lease_id: str) -> str:
        self.model.settle(lease_id)
        return lease_id

    @rule(lease_id=ended)
    def settle_again(self, lease_id: str) -> None:
        self.model.settle(lease_id)

    @rule(model=st.sampled_from(MODELS), restarted=st.booleans())
    def void(self, model: str, restarted: bool) -> None:
        self.model.void(model, restarted)

    @rule(account=st.sampled_from(ACCOUNTS))
    def look_ahead(self, account: str) -> None:
        self.model.look_ahead(account)

    @invariant()
    def the_laws_hold(self) -> None:
        self.model.check()

    def teardown(self) -> None:
        self.model.close()


Bank.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestBank = Bank.TestCase


def test_no_walk_breaks_a_law() -> None:
    assert violations(0, WALKS) == []
