"""The ledger: accounts, leases, and the two laws that bind them.

1. A reserve is granted only if, for every account, what is held + what is unleased + the price <= the capacity at
   that moment. All lines or none.
2. Money never leaks: every lease ends exactly once, by :meth:`Ledger.settle` or :meth:`Ledger.void`; idle means 0.

The ledger knows no threads: one event loop owns it, and no method awaits.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import uuid4

from common.errors import NotReady, VramgateError
from common.wire import Statement
from estimator.price import Line, Price
from frontend.account import Account, AccountView, Demand
from frontend.claim import ANYONE, Caller
from frontend.ends import Ends
from frontend.lease import Lease, LeaseState

__all__ = ["Clock", "Lease", "LeaseState", "Ledger", "LedgerError"]

Clock = Callable[[], float]
"""Monotonic seconds."""

RUN_CHARS = 8
"""Of a lease's id, the same for all that one ledger issues."""

OVERTIME = 0.5
"""A lease that outlives its expected end is expected to go on for this share of the time it has lasted."""
REVISED = 8
"""Overdue ends that are thought over at one question, so that none takes long."""


class LedgerError(VramgateError):
    """The books do not balance; the message is the whole equation."""


class Ledger:
    """Who holds how much of which account."""

    def __init__(self, clock: Clock, cancel_s: float = 1.0) -> None:
        """`cancel_s`: seconds in which an abandoned lease is expected to end."""
        self.on_release: list[Callable[[], None]] = []
        """Called after every change that may have left more available."""
        self.on_end: list[Callable[[Lease, float], None]] = []
        """Called with every lease that has ended and the seconds for which it held its bytes."""
        self.overrun_bytes = 0
        """Sum of what engines held beyond what was quoted; anything but 0 means that a price was not enforced."""
        self._clock = clock
        self._cancel_s = cancel_s
        self._run = uuid4().hex[:RUN_CHARS]
        self._accounts: dict[str, Account] = {}
        self._leases: dict[str, Lease] = {}
        self._boot_ids: dict[str, str] = {}

    def set_capacity(self, account: str, capacity_bytes: int) -> None:
        """Opens the account or changes its capacity, also to less than is held: then it is overdrawn."""
        self._entry(account).capacity_bytes = _not_negative(capacity_bytes)
        self._released()

    def report_unleased(self, account: str, unleased_bytes: int) -> None:
        """Takes the engine's word for what it holds without a lease."""
        self._entry(account).unleased_bytes = _not_negative(unleased_bytes)
        self._released()

    def capacity(self, account: str) -> int:
        """Bytes the account has in all; 0 for one that nobody opened."""
        return self._accounts[account].capacity_bytes if account in self._accounts else 0

    def held(self, account: str) -> int:
        """Bytes held by leases."""
        return self._accounts[account].held_bytes if account in self._accounts else 0

    def booked(self, account: str) -> int:
        """Bytes held, with and without leases: what the engine should say it uses."""
        return self.capacity(account) - self.balance(account)

    def available(self, account: str) -> int:
        """Bytes that could be reserved now."""
        return max(0, self.balance(account))

    def balance(self, account: str) -> int:
        """Capacity minus everything held; below 0 the account is overdrawn."""
        return self._accounts[account].balance_bytes if account in self._accounts else 0

    def accounts(self) -> tuple[AccountView, ...]:
        """Every account that was opened, in that order."""
        return tuple(account.view(name) for name, account in self._accounts.items())

    def demand(self, lines: Mapping[str, int]) -> Demand:
        """What the account that decides is asked for: one too small for ever, else one too full now, else the fullest.

        Raises NotReady where an account is not open yet.
        """
        for account in lines:
            if account not in self._accounts:
                raise NotReady(f"the capacity of {account} is not known yet", retry_after_s=1.0)
        demands = (
            Demand(account, need_bytes, self.available(account), self.capacity(account))
            for account, need_bytes in lines.items()
        )
        return max(demands, key=_urgency, default=Demand("", 0, 0, 0))

    def fits(self, lines: Mapping[str, int]) -> bool:
        """Whether a reserve of these lines would be granted now."""
        for account, need_bytes in lines.items():
            entry = self._accounts.get(account)
            if need_bytes > (max(0, entry.balance_bytes) if entry else 0):
                return False
        return True

    def never_fits(self, lines: Mapping[str, int]) -> bool:
        """Whether these lines exceed the whole capacity of an account that is open."""
        return any(
            account in self._accounts and need_bytes > self.capacity(account) for account, need_bytes in lines.items()
        )

    def reserve(self, model: str, price: Price, boot_id: str, expected_s: float, caller: Caller = ANYONE) -> Lease:
        """Takes all lines of the price, or none.

        `expected_s`: seconds the work is expected to hold them. Raises NeverFits and NotNow with the numbers, and
        NotReady where the price was made for an engine process that is gone or an account that is not open yet.
        """
        lines = price.by_account()
        if self._boot_ids.get(model, boot_id) != boot_id:
            raise NotReady(f"{model} was restarted after the request was priced", retry_after_s=1.0)
        demand = self.demand(lines)
        if not demand.fits:
            raise demand.refusal()
        now_s = self._clock()
        end_s = now_s + max(0.0, expected_s)
        lease_id = self._run + uuid4().hex[RUN_CHARS:]
        return self._book(Lease(lease_id, model, price, lines, LeaseState.RESERVED, boot_id, now_s, end_s, caller))

    def issued(self, lease_id: str) -> bool:
        """Whether the id is one of this ledger's own; an engine may work for one that was here before it."""
        return lease_id.startswith(self._run)

    def adopt(self, lease_id: str, model: str, lines: Mapping[str, int], boot_id: str) -> Lease:
        """Takes over a lease that another ledger has issued: nobody waits for its work, and its bytes are in use.

        It is granted whether or not it fits, because it was.
        """
        now_s = self._clock()
        price = Price(tuple(Line(account, size, "adopted") for account, size in lines.items()))
        end_s = now_s + self._cancel_s
        return self._book(Lease(lease_id, model, price, lines, LeaseState.ABANDONED, boot_id, now_s, end_s))

    def start(self, lease_id: str) -> bool:
        """Notes that the work goes to the engine; False where the lease has ended or is abandoned: do not send it."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.state is LeaseState.ABANDONED:
            return False
        self._leases[lease_id] = replace(lease, state=LeaseState.RUNNING)
        return True

    def abandon(self, lease_id: str) -> bool:
        """Notes that nobody waits for the work any more; its bytes count until it is settled. False if it has ended."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return False
        end_s = min(lease.expected_end_s, self._clock() + self._cancel_s)
        self._forget(lease)
        self._expect(replace(lease, state=LeaseState.ABANDONED, expected_end_s=end_s))
        return True

    def settle(self, lease_id: str, statement: Statement | None = None) -> bool:
        """Ends the lease: the engine no longer holds its bytes. False where it had ended before (no error)."""
        if lease_id not in self._leases:
            return False
        if statement is not None:
            self.overrun_bytes += max(0, statement.held_bytes - statement.quoted_bytes)
        self._end(lease_id)
        self._released()
        return True

    def void(self, model: str, boot_id: str) -> tuple[str, ...]:
        """Ends every lease of this model that another engine process held, and returns their ids.

        From now on `boot_id` is the process that prices and leases of this model are for.
        """
        self._boot_ids[model] = boot_id
        dead = tuple(lease.id for lease in self._leases.values() if lease.model == model and lease.boot_id != boot_id)
        for lease_id in dead:
            self._end(lease_id)
        if dead:
            self._released()
        return dead

    def lease(self, lease_id: str) -> Lease | None:
        """The lease as it stands; None once it has ended."""
        return self._leases.get(lease_id)

    def leases(self, state: LeaseState | None = None) -> tuple[Lease, ...]:
        """All leases that have not ended, or those in one state, oldest first."""
        return tuple(lease for lease in self._leases.values() if state is None or lease.state is state)

    def ends(self, account: str) -> Ends:
        """The expected ends of the leases on one account, none of them (but for a rush) in the past."""
        ends = self._accounts[account].ends
        now_s = self._clock()
        for _ in range(REVISED):
            first = ends.first()
            if first is None or first[0] >= now_s:
                break
            lease = self._leases[first[1]]
            self._forget(lease)
            self._expect(replace(lease, expected_end_s=now_s + OVERTIME * (now_s - lease.created_s)))
        return ends

    def check(self) -> None:
        """Adds everything up again from the leases; raises LedgerError with the whole equation if it does not hold."""
        sums = dict.fromkeys(self._accounts, 0)
        living = tuple(self._leases.values())
        for lease in living:
            for account, need_bytes in lease.lines.items():
                sums[account] = sums.get(account, 0) + need_bytes
        booked = {name: account.held_bytes for name, account in self._accounts.items()}
        ends = {name: list(account.ends) for name, account in self._accounts.items()}
        due = {
            name: sorted((lease.expected_end_s, lease.id, lease.lines[name]) for lease in living if name in lease.lines)
            for name in ends
        }
        if sums != booked or ends != due or any(held_bytes < 0 for held_bytes in booked.values()):
            raise LedgerError("the ledger does not balance:\n" + self.equation())

    def equation(self) -> str:
        """Every account with its leases, line by line."""
        text = []
        for view in self.accounts():
            text.append(
                f"{view.name}: capacity {view.capacity_bytes:,} = held {view.held_bytes:,} + unleased"
                f" {view.unleased_bytes:,} + available {view.available_bytes:,} - overdraft {view.overdraft_bytes:,}"
            )
            text += [
                f"  {lease.id} {lease.model} {lease.state} {lease.lines[view.name]:,}"
                for lease in self._leases.values()
                if view.name in lease.lines
            ]
        return "\n".join(text)

    def _entry(self, account: str) -> Account:
        return self._accounts.setdefault(account, Account())

    def _book(self, lease: Lease) -> Lease:
        for account, need_bytes in lease.lines.items():
            self._entry(account).held_bytes += need_bytes
        self._expect(lease)
        return lease

    def _expect(self, lease: Lease) -> None:
        """Puts it on the books with its expected end."""
        self._leases[lease.id] = lease
        for account, need_bytes in lease.lines.items():
            self._accounts[account].ends.add((lease.expected_end_s, lease.id, need_bytes))

    def _forget(self, lease: Lease) -> None:
        for account, need_bytes in lease.lines.items():
            self._accounts[account].ends.remove((lease.expected_end_s, lease.id, need_bytes))

    def _end(self, lease_id: str) -> None:
        lease = self._leases.pop(lease_id)
        self._forget(lease)
        for account, need_bytes in lease.lines.items():
            self._accounts[account].held_bytes -= need_bytes
        for tell in self.on_end:
            tell(lease, self._clock() - lease.created_s)

    def _released(self) -> None:
        for wake in self.on_release:
            wake()


def _urgency(demand: Demand) -> tuple[bool, bool, float]:
    return demand.never_fits, not demand.fits, demand.price_bytes / max(1, demand.available_bytes)


def _not_negative(value_bytes: int) -> int:
    if value_bytes < 0:
        raise ValueError(f"an account cannot have {value_bytes} bytes")
    return value_bytes
