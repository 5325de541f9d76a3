"""Weighted fairness between tenants, in byte-seconds.

Start-time fair queueing (Goyal, Vin, Cheng, 1997) with byte-seconds as the cost of a request: it starts at the later of
the virtual time and the virtual finish of its tenant's last one, and finishes `cost / weight` after that. Served in the
order of their finish, tenants that always wait receive byte-seconds in proportion to their weights; who was idle has
saved nothing up.
"""

from frontend.claim import Caller


class FairShares:
    """The virtual clock, and how far each tenant is on it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._finish: dict[str, float] = {}

    def finish(self, caller: Caller, byte_seconds: float) -> float:
        """Where in the order a request of this cost would stand; changes nothing."""
        return self._start(caller) + byte_seconds / caller.weight

    def charge(self, caller: Caller, byte_seconds: float) -> None:
        """The tenant's next request comes after one of this cost; below 0 to give back what was not used."""
        self._finish[caller.tenant] = self.finish(caller, byte_seconds)

    def serve(self, start: float) -> None:
        """A request that started there on the virtual clock got its bytes."""
        self._now = max(self._now, start)

    def _start(self, caller: Caller) -> float:
        return max(self._now, self._finish.get(caller.tenant, 0.0))
