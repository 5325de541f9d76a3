"""Weighted fairness between tenants, in byte-seconds.

Start-time fair queueing (Goyal, Vin, Cheng, 1997) with byte-seconds as the cost of a request: it starts at the later of
the virtual time and the virtual finish of its tenant's last one, and finishes `cost / weight` after that. Served in the
order of their finish, tenants that always wait receive byte-seconds in proportion to their weights; who was idle has
saved nothing up. A cost is an expectation: what was charged too much or too little goes into the tenant's next request,
so that within one tenant the order is that of arrival.

Each priority has a virtual time of its own, and it does not run past those that wait: one who passes them, or goes
before them for its priority, would else put them before everybody who comes later.
"""

import math
from collections import defaultdict
from typing import NamedTuple

from frontend.claim import Caller


class Span(NamedTuple):
    """A request on the virtual clock."""

    start: float
    finish: float


class FairShares:
    """The virtual clocks, and how far each tenant is on its own."""

    def __init__(self) -> None:
        self._now: dict[int, float] = defaultdict(float)
        """Priority -> virtual time."""
        self._finish: dict[str, float] = {}
        self._credit: dict[str, float] = {}
        """Tenant -> byte-seconds charged and not used; below 0 what it used beyond."""

    def span(self, caller: Caller, byte_seconds: float) -> Span:
        """Where a request of this cost would stand; changes nothing."""
        start = max(self._now[caller.priority], self._finish.get(caller.tenant, 0.0))
        return Span(start, start + max(0.0, byte_seconds - self._due(caller)) / caller.weight)

    def enter(self, caller: Caller, byte_seconds: float) -> Span:
        """Puts the tenant's next request behind one of this cost, and says where that one stands."""
        span = self.span(caller, byte_seconds)
        self._credit[caller.tenant] = max(0.0, self._due(caller) - byte_seconds)
        self._finish[caller.tenant] = span.finish
        return span

    def serve(self, caller: Caller, span: Span, earliest: float = math.inf) -> None:
        """A request that stood there got its bytes; `earliest` is where the first of those that still wait starts."""
        self._now[caller.priority] = max(self._now[caller.priority], min(span.start, earliest))

    def correct(self, caller: Caller, unused_byte_seconds: float) -> None:
        """A request that has entered used so much less than its cost; below 0 it used more."""
        self._credit[caller.tenant] = self._due(caller) + unused_byte_seconds

    def _due(self, caller: Caller) -> float:
        """What goes into the next request; a tenant that was idle has no claim left."""
        credit = self._credit.get(caller.tenant, 0.0)
        is_idle = self._finish.get(caller.tenant, 0.0) < self._now[caller.priority]
        return min(0.0, credit) if is_idle else credit
