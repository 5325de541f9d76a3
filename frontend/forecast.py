"""When will it fit? Read off the expected ends of running leases and what waits in front."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from frontend.claim import Lines
from frontend.ledger import Ledger

MEMORY = 50.0
"""Waits after which an old one counts for a third."""
START_S = 50.0
"""Weight of the forecast as it stands before anything is learned, in seconds of waiting."""


class Backlog(NamedTuple):
    """What waits for one account."""

    bytes: int = 0
    byte_seconds: float = 0.0
    """The bytes times the seconds for which they are expected to be held."""

    def plus(self, more_bytes: int, expected_s: float) -> "Backlog":
        """With one more claim; a negative amount takes one out."""
        return Backlog(self.bytes + more_bytes, self.byte_seconds + more_bytes * expected_s)


NOTHING = Backlog()


def wait_s(ledger: Ledger, lines: Lines, ahead: Mapping[str, Backlog], now_s: float) -> float | None:
    """Seconds until a claim starts behind `ahead` (account -> what waits in front of it), if nothing were lost.

    An account that stays full works off its capacity in byte-seconds every second; so whoever is in front takes its
    byte-seconds / capacity, and then the claim's own bytes have to come free. Where the running leases alone make
    room for all of them, that moment is the sooner one. None where even the end of them all does not make room.
    """
    longest_s = 0.0
    for account, need_bytes in lines.items():
        before = ahead.get(account, NOTHING)
        ends, balance_bytes = ledger.ends(account), ledger.balance(account)
        if need_bytes + before.bytes <= balance_bytes:
            continue
        own_s = ends.freeing(need_bytes - balance_bytes) if need_bytes > balance_bytes else now_s
        if own_s is None:
            return None
        worked_off_s = own_s + before.byte_seconds / ledger.capacity(account)
        at_once_s = ends.freeing(need_bytes + before.bytes - balance_bytes)
        start_s = worked_off_s if at_once_s is None else min(worked_off_s, at_once_s)
        longest_s = max(longest_s, start_s - now_s)
    return longest_s


class Size(NamedTuple):
    """A class of prices that wait about as long."""

    account: str
    octave: int
    """Of the account's capacity: 0 is about the whole, -1 about half of it."""

    @classmethod
    def of(cls, ledger: Ledger, lines: Lines) -> "Size":
        """By the account that it weighs heaviest on."""
        shares = {account: need_bytes / max(1, ledger.capacity(account)) for account, need_bytes in lines.items()}
        account = max(shares, key=shares.__getitem__, default="")
        share = shares.get(account, 0.0)
        return cls(account, round(math.log2(share)) if share else -64)


class Corrections:
    """How much longer waits turn out than they are forecast, learned for each size of price.

    The forecast knows no packing: what the first of the line is too large for stays free, and a small request passes
    others on the way while a large one is passed.
    """

    def __init__(self) -> None:
        self._sums: dict[Size, tuple[float, float]] = {}
        """Seconds forecast, seconds waited; old ones fade."""

    def factor(self, size: Size) -> float:
        """What a forecast is to be multiplied by."""
        forecast_s, waited_s = self._sums.get(size, (1.0, 1.0))
        return waited_s / forecast_s

    def learn(self, size: Size, forecast_s: float, waited_s: float) -> None:
        """A wait has ended that was forecast so, without correction."""
        keep = 1 - 1 / MEMORY
        old_forecast_s, old_waited_s = self._sums.get(size, (START_S, START_S))
        self._sums[size] = keep * old_forecast_s + forecast_s, keep * old_waited_s + waited_s
