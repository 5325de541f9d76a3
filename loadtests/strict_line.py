"""First come, first served: the lines that admission is compared with."""

import asyncio
from collections import deque

from common.errors import NotNow
from frontend.backfill import Reservations
from frontend.claim import Claim
from frontend.ledger import Clock, Lease, Ledger


class StrictLine:
    """Strict head of line, without a forecast: everybody waits until the first fits, or leaves at its deadline."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._line: deque[tuple[Claim, asyncio.Future[Lease]]] = deque()
        ledger.on_release.append(self._serve)

    async def admit(self, claim: Claim, timeout_s: float) -> Lease:
        """A lease in turn; raises NeverFits, and NotNow at the deadline."""
        demand = self._ledger.demand(claim.lines)
        if demand.never_fits:
            raise demand.refusal()
        grant: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._line.append((claim, grant))
        self._serve()
        try:
            async with asyncio.timeout(timeout_s):
                return await grant
        except TimeoutError:
            self._serve()
            raise NotNow("out of time") from None

    def _serve(self) -> None:
        while self._line:
            claim, grant = self._line[0]
            if not grant.done():
                if not self._ledger.fits(claim.lines):
                    return
                grant.set_result(self._ledger.reserve(claim.model, claim.price, claim.boot_id, claim.expected_s))
            self._line.popleft()


class NoPassing(Reservations):
    """Strict head of line with our forecasts and refusals: nobody starts before one who came earlier."""

    def allow(self, claim: Claim) -> bool:
        """Whether it fits and nobody in front of it waits for an account of its own."""
        return self._ledger.fits(claim.lines) and not self.concern(claim)
