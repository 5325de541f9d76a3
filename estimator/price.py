"""A price: bytes by account, each line with its reason."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """One item of a price: `bytes` on `account`, and `why` in words with the numbers put in."""

    account: str
    bytes: int
    why: str

    def __post_init__(self) -> None:
        if self.bytes < 0:
            raise ValueError(f"a price cannot be negative: {self}")


@dataclass(frozen=True)
class Price:
    """What a request will add to the accounts while it runs; a sum of lines."""

    lines: tuple[Line, ...] = ()

    @classmethod
    def of(cls, lines: Iterable[Line]) -> "Price":
        """The price with these lines, those of zero bytes left out."""
        return cls(tuple(line for line in lines if line.bytes))

    def __add__(self, other: "Price") -> "Price":
        return Price(self.lines + other.lines)

    @property
    def total_bytes(self) -> int:
        """Sum over all accounts, in bytes."""
        return sum(line.bytes for line in self.lines)

    def by_account(self) -> dict[str, int]:
        """Account -> bytes."""
        sums: dict[str, int] = {}
        for line in self.lines:
            sums[line.account] = sums.get(line.account, 0) + line.bytes
        return sums

    def fits(self, available: Mapping[str, int]) -> bool:
        """Whether every account has what this price asks of it; an account that is not there has nothing."""
        return all(need_bytes <= available.get(account, 0) for account, need_bytes in self.by_account().items())

    def explain(self) -> str:
        """One line of text per item: account, bytes, reason."""
        return "\n".join(f"{line.account:<12} {line.bytes:>16,} B  {line.why}" for line in self.lines)
