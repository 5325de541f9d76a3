"""Who may pass whom: EASY backfill (Lifka, 1995) over accounts of bytes.

The first of the line that cannot start has a reservation at its earliest possible start. One behind it may start now if
it ends before that, or takes bytes that will be left over then. Who draws on other accounts passes freely, and the
first of those on their accounts has a reservation of its own.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from frontend.claim import Claim, Lines
from frontend.ledger import Ledger


@dataclass(frozen=True)
class Reservation:
    """When one can start at the earliest, and what will be left beside it then."""

    lines: Lines
    start_s: float
    """Infinite where no end of a lease makes room: something holds bytes without one."""
    spare: Lines
    """Account -> bytes that nobody needs at `start_s`."""

    @classmethod
    def of(cls, ledger: Ledger, lines: Lines, now_s: float) -> "Reservation":
        """For one that is next."""
        start_s = now_s
        for account, need_bytes in lines.items():
            short_bytes = need_bytes - ledger.balance(account)
            if short_bytes > 0:
                freed_s = ledger.ends(account).freeing(short_bytes)
                start_s = max(start_s, math.inf if freed_s is None else freed_s)
        spare = {
            account: ledger.balance(account) + ledger.ends(account).freed_by(start_s) - need_bytes
            for account, need_bytes in lines.items()
        }
        return cls(lines, start_s, spare)

    def leaves_room_for(self, lines: Lines, end_s: float) -> bool:
        """Whether work that starts now and ends at `end_s` does not delay it."""
        return end_s <= self.start_s or all(
            need_bytes <= self.spare.get(account, need_bytes) for account, need_bytes in lines.items()
        )


class Reservations:
    """Of those who cannot start, each the first on its accounts."""

    def __init__(self, ledger: Ledger, now_s: float, heads: Iterable[Lines] = ()) -> None:
        self._ledger = ledger
        self._now_s = now_s
        self._all = [Reservation.of(ledger, lines, now_s) for lines in heads]

    def allow(self, claim: Claim) -> bool:
        """Whether it fits now and delays nobody."""
        end_s = self._now_s + claim.expected_s
        return self._ledger.fits(claim.lines) and all(
            reservation.leaves_room_for(claim.lines, end_s) for reservation in self._all
        )

    def concern(self, claim: Claim) -> bool:
        """Whether somebody in front of it waits for an account of its own."""
        return any(not reservation.lines.keys().isdisjoint(claim.lines) for reservation in self._all)

    def add(self, claim: Claim) -> Reservation:
        """It cannot start and nobody in front of it competes with it."""
        self._all.append(Reservation.of(self._ledger, claim.lines, self._now_s))
        return self._all[-1]

    def renew(self) -> None:
        """Somebody has taken bytes: what is left beside the others is less."""
        self._all = [Reservation.of(self._ledger, reservation.lines, self._now_s) for reservation in self._all]
