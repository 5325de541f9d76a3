"""The two laws of the ledger over random walks: every event that a bank can meet, beside a model that only adds up.

``python -m loadtests.ledger_walk 1000000`` is a long run; it prints how many walks broke a law.
"""

import random
import sys
from collections.abc import Callable

from common.errors import NeverFits, NotNow, NotReady, RequestError
from estimator.price import Line, Price
from frontend.ledger import LeaseState, Ledger, LedgerError

ACCOUNTS = ("llama.pages", "unet.canvas", "host")
MODELS = ("llama", "unet")
STEPS = 20
"""Events in one walk."""


class LedgerModel:
    """The ledger beside a model of it; each event asserts that the ledger did what the model says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ledger = Ledger(lambda: self.now_s)
        self.capacity: dict[str, int] = {}
        self.unleased = dict.fromkeys(ACCOUNTS, 0)
        self.living: dict[str, tuple[str, str, dict[str, int]]] = {}
        """Lease id -> model, boot id, lines."""
        self.boots = dict.fromkeys(MODELS, 0)

    def used(self, account: str) -> int:
        """Bytes held there, with and without leases."""
        return self.unleased[account] + sum(lines.get(account, 0) for _, _, lines in self.living.values())

    def resize(self, account: str, size: int) -> None:
        """The account is opened, or foreign use changes what it has."""
        self.ledger.set_capacity(account, size)
        self.capacity[account] = size

    def use_without_a_lease(self, account: str, size: int) -> None:
        """The engine tells what it holds for work that came to it directly."""
        if account in self.capacity:
            self.ledger.report_unleased(account, size)
            self.unleased[account] = size

    def reserve(self, model: str, lines: dict[str, int], expected_s: float, stale: bool) -> str | None:
        """A request comes, `stale` priced for a process that is gone; its lease, or None where it has to be refused."""
        boot = self.boots[model] - (stale and self.boots[model] > 0)
        known = lines.keys() <= self.capacity.keys() and boot == self.boots[model]
        fits = known and all(size <= max(0, self.capacity[name] - self.used(name)) for name, size in lines.items())
        too_big = known and any(size > self.capacity[name] for name, size in lines.items())
        asked = Price(tuple(Line(account, size, "x") for account, size in lines.items()))
        before = self.ledger.accounts(), self.ledger.leases()
        refusal: RequestError | None = None
        try:
            lease = self.ledger.reserve(model, asked, f"boot-{boot}", expected_s)
        except RequestError as error:
            refusal = error
        assert (refusal is None) == fits
        if refusal is not None:
            assert isinstance(refusal, NeverFits if too_big else NotNow if known else NotReady)
            assert (self.ledger.accounts(), self.ledger.leases()) == before
            return None
        self.living[lease.id] = (model, lease.boot_id, lines)
        return lease.id

    def start(self, lease_id: str) -> None:
        """The work is sent."""
        lease = self.ledger.lease(lease_id)
        sendable = lease is not None and lease.state is not LeaseState.ABANDONED
        assert self.ledger.start(lease_id) == sendable

    def abandon(self, lease_id: str) -> None:
        """The client leaves."""
        assert self.ledger.abandon(lease_id) == (lease_id in self.living)

    def settle(self, lease_id: str) -> None:
        """The engine has finished, perhaps told twice."""
        assert self.ledger.settle(lease_id) == (lease_id in self.living)
        self.living.pop(lease_id, None)

    def void(self, model: str, restarted: bool) -> None:
        """A status comes, of a new process where `restarted`."""
        self.boots[model] += restarted
        boot_id = f"boot-{self.boots[model]}"
        dead = {key for key, (owner, boot, _) in self.living.items() if owner == model and boot != boot_id}
        assert set(self.ledger.void(model, boot_id)) == dead
        for lease_id in dead:
            del self.living[lease_id]

    def look_ahead(self, account: str) -> None:
        """Somebody asks when bytes come back, which revises ends that are overdue."""
        if account in self.capacity:
            self.ledger.ends(account)

    def check(self) -> None:
        """Both laws, and every number that the ledger gives."""
        self.ledger.check()
        assert {lease.id for lease in self.ledger.leases()} == self.living.keys()
        for account, capacity_bytes in self.capacity.items():
            used_bytes = self.used(account)
            assert self.ledger.booked(account) == used_bytes
            assert self.ledger.available(account) == max(0, capacity_bytes - used_bytes)

    def close(self) -> None:
        """Everything ends: idle means 0."""
        for lease_id in tuple(self.living):
            self.settle(lease_id)
        assert all(view.held_bytes == 0 for view in self.ledger.accounts())
        assert all(not list(self.ledger.ends(account)) for account in self.capacity)


def walk(seed: int) -> None:
    """One random walk; raises AssertionError or LedgerError where a law is broken."""
    dice = random.Random(seed)
    bank = LedgerModel()
    for account in dice.sample(ACCOUNTS, dice.randint(1, 3)):
        bank.resize(account, dice.randint(0, 150))
    ids: list[str] = []
    events = _events(bank, dice, ids)
    for _ in range(STEPS):
        dice.choice(events)()
        bank.check()
    bank.close()


def violations(first: int, count: int) -> list[int]:
    """Seeds, out of `count` from `first` on, whose walk broke a law."""
    broken = []
    for seed in range(first, first + count):
        try:
            walk(seed)
        except (AssertionError, LedgerError):
            broken.append(seed)
    return broken


def _events(bank: LedgerModel, dice: random.Random, ids: list[str]) -> list[Callable[[], None]]:
    def reserve() -> None:
        lines = {name: dice.randint(0, 120) for name in dice.sample(ACCOUNTS, dice.randint(0, 3))}
        lease_id = bank.reserve(dice.choice(MODELS), lines, dice.uniform(0, 60), dice.random() < 0.1)
        ids.extend([lease_id] if lease_id else [])

    def on_a_lease(deed: Callable[[str], None]) -> Callable[[], None]:
        return lambda: deed(dice.choice(ids)) if ids else None

    def pass_time() -> None:
        bank.now_s += dice.uniform(0, 100)

    return [
        *[reserve] * 4,
        on_a_lease(bank.start),
        on_a_lease(bank.abandon),
        on_a_lease(bank.settle),
        pass_time,
        lambda: bank.resize(dice.choice(ACCOUNTS), dice.randint(0, 150)),
        lambda: bank.use_without_a_lease(dice.choice(ACCOUNTS), dice.randint(0, 60)),
        lambda: bank.void(dice.choice(MODELS), dice.random() < 0.5),
        lambda: bank.look_ahead(dice.choice(ACCOUNTS)),
    ]


if __name__ == "__main__":
    walks = int(sys.argv[1])
    broken = violations(0, walks)
    print(f"{walks} walks of {STEPS} events: {len(broken)} broke a law {broken[:10]}")
    sys.exit(bool(broken))
