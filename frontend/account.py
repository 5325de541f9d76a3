"""One account of the bank: its capacity, what is used of it, and what a price asks of it."""

from dataclasses import dataclass, field

from common.errors import NeverFits, NotNow
from frontend.ends import Ends


@dataclass(frozen=True)
class AccountView:
    """One account at one moment, in bytes."""

    name: str
    capacity_bytes: int
    held_bytes: int
    """Sum of all leases."""
    unleased_bytes: int
    """Held by the engine for work that came to it without a lease."""
    available_bytes: int
    overdraft_bytes: int
    """What is used beyond a capacity that has shrunk."""


@dataclass
class Account:
    """The sums the ledger keeps of one account, so that no decision has to add up leases."""

    capacity_bytes: int = 0
    held_bytes: int = 0
    unleased_bytes: int = 0
    ends: Ends = field(default_factory=Ends)
    """Of the leases that hold some of it."""

    @property
    def balance_bytes(self) -> int:
        """What is left; below 0 it is an overdraft."""
        return self.capacity_bytes - self.held_bytes - self.unleased_bytes

    def view(self, name: str) -> AccountView:
        """The account as others may see it."""
        return AccountView(
            name=name,
            capacity_bytes=self.capacity_bytes,
            held_bytes=self.held_bytes,
            unleased_bytes=self.unleased_bytes,
            available_bytes=max(0, self.balance_bytes),
            overdraft_bytes=max(0, -self.balance_bytes),
        )


@dataclass(frozen=True)
class Demand:
    """What a price asks of one account, and what the account has, in bytes."""

    account: str
    """Empty for a price of nothing."""
    price_bytes: int
    available_bytes: int
    capacity_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the account has it now."""
        return self.price_bytes <= self.available_bytes

    @property
    def never_fits(self) -> bool:
        """Whether it is more than the whole account."""
        return self.price_bytes > self.capacity_bytes

    def refusal(self, advice: str = "", retry_after_s: float | None = None) -> NeverFits | NotNow:
        """The error that says so with the numbers, `advice` at the end of its message."""
        numbers = {
            "price_bytes": self.price_bytes,
            "available_bytes": self.available_bytes,
            "capacity_bytes": self.capacity_bytes,
        }
        asks = f"the request is priced at {self.price_bytes:,} bytes of {self.account}, which has"
        if self.never_fits:
            return NeverFits(f"{asks} {self.capacity_bytes:,} in all", numbers=numbers)
        left = f"{self.available_bytes:,} of {self.capacity_bytes:,} left"
        return NotNow(f"{asks} {left}{advice}", numbers=numbers, retry_after_s=retry_after_s)
