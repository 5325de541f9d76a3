"""One account of the bank: its capacity, what is used of it, and what a price that exceeds it is told."""

from dataclasses import dataclass

from common.errors import NeverFits, NotNow


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
class Shortage:
    """The account that decides against a price, and its numbers in bytes."""

    account: str
    price_bytes: int
    available_bytes: int
    capacity_bytes: int

    @property
    def forever(self) -> bool:
        """Whether the price is above the whole capacity."""
        return self.price_bytes > self.capacity_bytes

    def numbers(self) -> dict[str, int]:
        """What the client is told."""
        return {
            "price_bytes": self.price_bytes,
            "available_bytes": self.available_bytes,
            "capacity_bytes": self.capacity_bytes,
        }

    def error(self, advice: str = "", retry_after_s: float | None = None) -> NeverFits | NotNow:
        """The refusal this shortage means, `advice` at the end of its message."""
        asks = f"the request is priced at {self.price_bytes:,} bytes of {self.account}, which has"
        if self.forever:
            return NeverFits(f"{asks} {self.capacity_bytes:,} in all{advice}", numbers=self.numbers())
        return NotNow(
            f"{asks} {self.available_bytes:,} of {self.capacity_bytes:,} left{advice}",
            numbers=self.numbers(),
            retry_after_s=retry_after_s,
        )
