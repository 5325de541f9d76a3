"""Admission: may it run now, later, or never; and the line of those that wait.

The line is served in order of arrival, account by account: a request passes another only where the two draw on no
account in common, so that passing costs the other nothing.
"""

import asyncio
from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from common.errors import NotReady, RequestError
from common.sections import Admission as AdmissionSettings
from estimator.price import Price
from frontend.account import Demand
from frontend.claim import Claim
from frontend.fairness import FairShares
from frontend.forecast import Hold, expected_start_s
from frontend.ledger import Clock, Lease, Ledger


class Verdict(StrEnum):
    """What becomes of a request."""

    NEVER = "never"
    """Its price is above the whole capacity (413)."""
    NOT_NOW = "not_now"
    """It fits, but not soon enough (429)."""
    WAIT = "wait"
    """It fits soon: it joins the line."""
    ADMIT = "admit"
    """It fits now."""


@dataclass(frozen=True)
class Decision:
    """A verdict with the numbers that decided."""

    verdict: Verdict
    price_bytes: int
    available_bytes: int
    capacity_bytes: int
    account: str
    """The account that decided, or the one that the price weighs heaviest on; empty for a price of nothing."""
    retry_after_s: float | None
    """Seconds until the price is expected to fit, at a guess if need be; None where it fits now or never."""

    def refusal(self, advice: str) -> RequestError:
        """The error for a request that is not admitted, `advice` at the end of its message."""
        demand = Demand(self.account, self.price_bytes, self.available_bytes, self.capacity_bytes)
        return demand.refusal(advice, self.retry_after_s)


@dataclass(eq=False)
class _Waiter:
    claim: Claim
    rank: tuple[int, float, int]
    """Priority, highest first; virtual finish of its tenant; arrival."""
    start: float
    """On the virtual clock."""
    grant: asyncio.Future[Lease]

    @property
    def lines(self) -> Mapping[str, int]:
        """Account -> bytes."""
        return self.claim.lines


class Admission:
    """The gate in front of the ledger; lives on one event loop, like the ledger."""

    def __init__(self, ledger: Ledger, settings: AdmissionSettings, clock: Clock) -> None:
        self._ledger = ledger
        self._settings = settings
        self._clock = clock
        self._line: list[_Waiter] = []
        self._shares = FairShares()
        self._arrivals = count()
        self._closed: str | None = None
        ledger.on_release.append(self._serve)

    @property
    def waiting(self) -> int:
        """Requests in the line."""
        return len(self._line)

    @property
    def closed(self) -> str | None:
        """Why nothing is admitted; None while it is open."""
        return self._closed

    def ask(self, price: Price, wait_s: float | None = None) -> Decision:
        """The verdict for a request that could wait `wait_s` (or as long as the settings allow); changes nothing.

        Raises NotReady where the price draws on an account that is not open yet.
        """
        lines = price.by_account()
        demand = self._ledger.demand(lines)
        if demand.never_fits:
            return _decide(Verdict.NEVER, demand)
        ahead = self._ahead(lines)
        if demand.fits and not ahead:
            return _decide(Verdict.ADMIT, demand)
        limit_s = self._limit_s(wait_s)
        expected_s = self._expected_wait_s(lines, ahead)
        in_time = limit_s > 0 and (expected_s is None or expected_s <= limit_s)
        verdict = Verdict.WAIT if in_time and self.waiting < self._settings.max_waiting else Verdict.NOT_NOW
        return _decide(verdict, demand, self._settings.max_wait_s if expected_s is None else expected_s)

    async def admit(self, claim: Claim, wait_s: float) -> Lease:
        """A lease for the claim, at once or after waiting at most `wait_s` seconds.

        Raises NeverFits, NotNow with the time until a repeat could succeed, and NotReady while closed. A cancelled
        caller keeps neither lease nor place.
        """
        if self._closed is not None:
            raise NotReady(self._closed)
        decision = self.ask(claim.price, wait_s)
        if decision.verdict is Verdict.ADMIT:
            return self._ledger.reserve(claim.model, claim.price, claim.boot_id, claim.expected_s)
        if decision.verdict is Verdict.WAIT:
            return await self._wait(claim, self._limit_s(wait_s))
        raise decision.refusal(self._advice(decision, self._limit_s(wait_s)))

    def close(self, reason: str) -> None:
        """Admits nothing until :meth:`open`; those in the line keep their places and their deadlines."""
        self._closed = reason

    def open(self) -> None:
        """Admits again."""
        self._closed = None
        self._serve()

    def dismiss(self, model: str, reason: str) -> None:
        """Those in the line for this model wait no longer: it has no engine that could serve them."""
        for waiter in self._line:
            if waiter.claim.model == model and not waiter.grant.done():
                waiter.grant.set_exception(NotReady(reason, retry_after_s=1.0))
        self._line = [waiter for waiter in self._line if not waiter.grant.done()]
        self._serve()

    async def _wait(self, claim: Claim, limit_s: float) -> Lease:
        loop = asyncio.get_running_loop()
        finish = self._shares.finish(claim.caller, claim.byte_seconds)
        rank = (-claim.caller.priority, finish, next(self._arrivals))
        start = finish - claim.byte_seconds / claim.caller.weight
        waiter = _Waiter(claim, rank, start, loop.create_future())
        self._shares.charge(claim.caller, claim.byte_seconds)
        insort(self._line, waiter, key=lambda waiter: waiter.rank)
        timer = loop.call_later(limit_s, self._expire, waiter, limit_s)
        try:
            return await waiter.grant
        except asyncio.CancelledError:
            self._give_back(waiter)
            raise
        finally:
            timer.cancel()
            self._leave(waiter)

    def _serve(self) -> None:
        """Grants whatever the head of the line, account by account, can have now."""
        if self._closed is not None or not self._line:
            return
        blocked: set[str] = set()
        for waiter in self._line:
            if waiter.grant.done():
                continue
            if blocked.isdisjoint(waiter.lines) and self._try_grant(waiter):
                continue
            blocked.update(waiter.lines)
        self._line = [waiter for waiter in self._line if not waiter.grant.done()]

    def _try_grant(self, waiter: _Waiter) -> bool:
        """Whether the waiter has its answer now: a lease, or the reason why it will never get one."""
        try:
            if not self._ledger.fits(waiter.lines) and not self._ledger.never_fits(waiter.lines):
                return False
            claim = waiter.claim
            waiter.grant.set_result(self._ledger.reserve(claim.model, claim.price, claim.boot_id, claim.expected_s))
            self._shares.serve(waiter.start)
        except RequestError as refusal:
            waiter.grant.set_exception(refusal)
        return True

    def _expire(self, waiter: _Waiter, limit_s: float) -> None:
        if waiter.grant.done():
            return
        if self._closed is not None:
            waiter.grant.set_exception(NotReady(self._closed))
            return
        expected_s = self._expected_wait_s(waiter.lines, self._ahead(waiter.lines, waiter))
        advice = f", after waiting for {limit_s:.1f} s"
        retry_after_s = self._settings.max_wait_s if expected_s is None else expected_s
        waiter.grant.set_exception(self._ledger.demand(waiter.lines).refusal(advice, retry_after_s))

    def _give_back(self, waiter: _Waiter) -> None:
        """Returns a lease that was granted in the very moment its caller was cancelled."""
        grant = waiter.grant
        if grant.done() and not grant.cancelled() and grant.exception() is None:
            self._ledger.settle(grant.result().id)

    def _leave(self, waiter: _Waiter) -> None:
        if waiter in self._line:
            self._line.remove(waiter)
            self._serve()

    def _ahead(self, lines: Mapping[str, int], of: _Waiter | None = None) -> list[_Waiter]:
        """Those in the line (before `of`) that must be served first, because they draw on an account in common."""
        line = self._line[: self._line.index(of)] if of in self._line else self._line
        accounts = set(lines)
        ahead: list[_Waiter] = []
        for waiter in reversed(line):
            if not waiter.grant.done() and not accounts.isdisjoint(waiter.lines):
                accounts.update(waiter.lines)
                ahead.append(waiter)
        return ahead[::-1]

    def _expected_wait_s(self, lines: Mapping[str, int], ahead: list[_Waiter]) -> float | None:
        """None where something holds bytes that no lease accounts for, so that nobody can tell."""
        line = [Hold(waiter.lines, waiter.claim.expected_s) for waiter in ahead] + [Hold(lines, 0.0)]
        balances = {account: self._ledger.balance(account) for hold in line for account in hold.lines}
        now_s = self._clock()
        start_s = expected_start_s(line, balances, self._ledger.ends(), now_s)
        return None if start_s is None else start_s - now_s

    def _limit_s(self, wait_s: float | None) -> float:
        longest_s = self._settings.max_wait_s
        return longest_s if wait_s is None else min(wait_s, longest_s)

    def _advice(self, decision: Decision, limit_s: float) -> str:
        if self.waiting >= self._settings.max_waiting:
            return f", and {self.waiting} requests wait already"
        return f"; it is expected to fit in {decision.retry_after_s or 0:.1f} s and can wait for {limit_s:.1f} s"


def _decide(verdict: Verdict, demand: Demand, retry_after_s: float | None = None) -> Decision:
    return Decision(
        verdict=verdict,
        price_bytes=demand.price_bytes,
        available_bytes=demand.available_bytes,
        capacity_bytes=demand.capacity_bytes,
        account=demand.account,
        retry_after_s=retry_after_s,
    )
