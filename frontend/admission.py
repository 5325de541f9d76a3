"""Admission: may it run now, later, or never; and the line of those that wait.

The line is served by priority, then by fair shares, then in order of arrival. A request that came later may pass one
that came earlier only where it does not delay it: it draws on other accounts, or it ends before the first of the line
can start, or it takes bytes that the first will not need (EASY backfill).
"""

import asyncio
from collections.abc import Iterable
from heapq import merge
from itertools import count
from math import isfinite
from operator import attrgetter

from common.errors import NotReady, RequestError
from common.sections import Admission as AdmissionSettings
from estimator.price import Price
from frontend import forecast
from frontend.backfill import Reservation, Reservations
from frontend.claim import ANYONE, Caller, Claim
from frontend.fairness import FairShares, Span
from frontend.forecast import Corrections
from frontend.hindsight import Hindsight, Refusal
from frontend.ledger import Clock, Lease, Ledger
from frontend.line import Line, Rank, Waiter
from frontend.verdict import Decision, Verdict

__all__ = ["Admission", "Decision", "Verdict"]

CAUTION = 1.5
"""Nobody joins the line whose expected wait, so many times over, is longer than it can wait."""
LONG = 3.0
"""Work is given so many times its expected duration to end in time, where it could last as long."""


class Admission:
    """The gate in front of the ledger; lives on one event loop, like the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        settings: AdmissionSettings,
        clock: Clock,
        hindsight: Hindsight | None = None,
        passing: type[Reservations] = Reservations,
    ) -> None:
        """`passing`: the rule by which one may pass another."""
        self.hindsight = hindsight or Hindsight()
        self._ledger = ledger
        self._settings = settings
        self._clock = clock
        self._line = Line()
        self._shares = FairShares()
        self._corrections = Corrections()
        self._charged: dict[str, float] = {}
        """Lease id -> byte-seconds that its tenant was charged for it in advance."""
        self._arrivals = count()
        self._closed: str | None = None
        self._passing = passing
        ledger.on_release.append(self._serve)
        ledger.on_end.append(self._reckon)

    @property
    def waiting(self) -> int:
        """Requests in the line."""
        return len(self._line)

    @property
    def closed(self) -> str | None:
        """Why nothing is admitted; None while it is open."""
        return self._closed

    def ask(
        self, price: Price, wait_s: float | None = None, expected_s: float = 0.0, caller: Caller = ANYONE
    ) -> Decision:
        """The verdict for a request that could wait `wait_s` (or as long as the settings allow); changes nothing.

        `expected_s`: seconds for which it is expected to hold its price. Raises NotReady where the price draws on an
        account that is not open yet.
        """
        claim = Claim("", price, "", expected_s, caller=caller)
        return self._judge(claim, self._rank(claim), self._settings.max_wait_s if wait_s is None else wait_s)

    async def admit(self, claim: Claim, timeout_s: float) -> Lease:
        """A lease for the claim, at once or after waiting.

        `timeout_s`: in which its work must have ended; the line keeps as much of it free for that as the claim says.
        Raises NeverFits, NotNow with the time until a repeat could succeed, and NotReady while closed. A cancelled
        caller keeps neither lease nor place.
        """
        if self._closed is not None:
            raise NotReady(self._closed)
        rank, limit_s = self._rank(claim), min(_latest_start_s(claim, timeout_s), self._settings.max_wait_s)
        decision = self._judge(claim, rank, limit_s)
        if decision.verdict is Verdict.ADMIT:
            return self._grant(claim)
        if decision.verdict is Verdict.WAIT:
            longest_s = max(limit_s, timeout_s - claim.expected_s)
            return await self._wait(claim, rank, longest_s, decision.forecast_s)
        self._remember(claim, rank, decision)
        raise decision.refusal()

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

    def _judge(self, claim: Claim, rank: Rank, limit_s: float) -> Decision:
        """`limit_s`: how long it can wait; below 0 it could not end in time even if it began now."""
        demand = self._ledger.demand(claim.lines)
        if demand.never_fits:
            return Decision(Verdict.NEVER, demand)
        heads = (head.lines for head in self._line.heads(rank))
        if demand.fits and self._passing(self._ledger, self._clock(), heads).allow(claim):
            if limit_s >= 0 or not any(map(self._ledger.held, claim.lines)):
                return Decision(Verdict.ADMIT, demand)
            late = f"; it would run for {claim.expected_s:.1f} s, {-limit_s:.1f} s longer than it may"
            return Decision(Verdict.NOT_NOW, demand, advice=late)
        forecast_s = self._forecast_s(claim, rank)
        expected_s = self._corrected_s(claim, forecast_s)
        advice = ""
        if limit_s <= 0 or (forecast_s is not None and CAUTION * expected_s > limit_s):
            surely_s = max(0.0, limit_s) / CAUTION
            advice = f"; it is expected to fit in {expected_s:.1f} s and can surely wait for {surely_s:.1f} s"
        elif not self._line.has_room(claim, rank, self._settings):
            advice = f", and {self.waiting} requests wait already"
        return Decision(Verdict.NOT_NOW if advice else Verdict.WAIT, demand, expected_s, forecast_s, advice)

    def _rank(self, claim: Claim) -> Rank:
        finish = self._shares.span(claim.caller, claim.byte_seconds).finish
        return (-claim.caller.priority, finish, next(self._arrivals))

    def _remember(self, claim: Claim, rank: Rank, decision: Decision) -> None:
        """Watches a refused request to see whether it was told the right time."""
        if decision.forecast_s is not None and decision.retry_after_s is not None:
            self.hindsight.add(Refusal(claim, rank, self._clock(), decision.forecast_s, decision.retry_after_s))

    async def _wait(self, claim: Claim, rank: Rank, limit_s: float, forecast_s: float | None) -> Lease:
        if not self._line.has_room(claim, None, self._settings):
            self._turn_away(self._line.last, ", and others go before it in a full line")
        loop = asyncio.get_running_loop()
        span = self._shares.enter(claim.caller, claim.byte_seconds)
        waiter = Waiter(claim, rank, span, self._clock(), forecast_s, loop.create_future())
        self._line.add(waiter)
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
        """Grants whatever can be had now, in the order of the line, the refused looking on from their places."""
        if self._closed is not None or not (self._line or self.hindsight):
            return
        reserved = self._passing(self._ledger, self._clock())
        everybody: Iterable[Waiter | Refusal] = merge(self._line, self.hindsight, key=attrgetter("rank"))
        for waiter in everybody:
            if isinstance(waiter, Refusal):
                self._look_back(waiter, reserved)
            elif waiter.grant.done():
                continue
            elif reserved.allow(waiter.claim):
                self._answer(waiter)
                reserved.renew()
            elif not reserved.concern(waiter.claim):
                if self._ledger.never_fits(waiter.lines):
                    self._answer(waiter)
                else:
                    reserved.add(waiter.claim)

    def _look_back(self, refusal: Refusal, reserved: Reservations) -> None:
        """Notes when a request that was sent away would have started: now, or as the head that it would be by now."""
        now_s = self._clock()
        if reserved.allow(refusal.claim):
            start_s = now_s
        elif reserved.concern(refusal.claim):
            return
        else:
            start_s = Reservation.of(self._ledger, refusal.claim.lines, now_s).start_s
        if isfinite(start_s):
            self._learn(refusal.claim, refusal.forecast_s, start_s - refusal.refused_s)
            self.hindsight.settle(refusal, start_s)

    def _answer(self, waiter: Waiter) -> None:
        """Takes it out of the line, with a lease or the reason why it will never get one."""
        self._line.remove(waiter)
        try:
            waiter.grant.set_result(self._reserve(waiter.claim))
        except RequestError as refusal:
            waiter.grant.set_exception(refusal)
            self._shares.correct(waiter.claim.caller, waiter.claim.byte_seconds)
        else:
            self._serve_share(waiter.claim, waiter.span)
            self._learn(waiter.claim, waiter.forecast_s, self._clock() - waiter.joined_s)

    def _grant(self, claim: Claim) -> Lease:
        lease = self._reserve(claim)
        self._serve_share(claim, self._shares.enter(claim.caller, claim.byte_seconds))
        return lease

    def _serve_share(self, claim: Claim, span: Span) -> None:
        self._shares.serve(claim.caller, span, self._line.earliest_start(claim.caller.priority))

    def _reserve(self, claim: Claim) -> Lease:
        lease = self._ledger.reserve(claim.model, claim.price, claim.boot_id, claim.expected_s, claim.caller)
        self._charged[lease.id] = claim.byte_seconds
        return lease

    def _reckon(self, lease: Lease, held_s: float) -> None:
        """Charges its tenant for what it really used."""
        charged = self._charged.pop(lease.id, None)
        if charged is not None:
            self._shares.correct(lease.caller, charged - lease.price.total_bytes * held_s)

    def _expire(self, waiter: Waiter, limit_s: float) -> None:
        if waiter.grant.done():
            return
        if self._closed is not None:
            waiter.grant.set_exception(NotReady(self._closed))
        else:
            self._turn_away(waiter, f", after waiting for {limit_s:.1f} s")

    def _turn_away(self, waiter: Waiter, advice: str) -> None:
        """Takes one out of the line, with a refusal where it has not just left it for another reason."""
        if not waiter.grant.done():
            retry_after_s = self._corrected_s(waiter.claim, self._forecast_s(waiter.claim, waiter.rank))
            waiter.grant.set_exception(self._ledger.demand(waiter.lines).refusal(advice, retry_after_s))
        self._leave(waiter)

    def _give_back(self, waiter: Waiter) -> None:
        """Returns a lease that was granted in the very moment its caller was cancelled."""
        grant = waiter.grant
        if grant.done() and not grant.cancelled() and grant.exception() is None:
            self._ledger.settle(grant.result().id)

    def _leave(self, waiter: Waiter) -> None:
        if self._line.remove(waiter):
            self._shares.correct(waiter.claim.caller, waiter.claim.byte_seconds)
            self._serve()

    def _forecast_s(self, claim: Claim, rank: Rank) -> float | None:
        """None where something holds bytes that no lease accounts for, so that nobody can tell."""
        return forecast.wait_s(self._ledger, claim.lines, self._line.ahead_of(rank), self._clock())

    def _corrected_s(self, claim: Claim, forecast_s: float | None) -> float:
        """Seconds that it is expected to wait; the longest wait where nobody can tell."""
        if forecast_s is None:
            return self._settings.max_wait_s
        return forecast_s * self._corrections.factor(forecast.Size.of(self._ledger, claim.lines))

    def _learn(self, claim: Claim, forecast_s: float | None, waited_s: float) -> None:
        if forecast_s is not None:
            self._corrections.learn(forecast.Size.of(self._ledger, claim.lines), forecast_s, waited_s)


def _latest_start_s(claim: Claim, timeout_s: float) -> float:
    """By when work should start to end in time; half of the time is enough for work that is expected to need less.

    Nobody joins the line who is expected to start later. Who has joined may stay until his expected work no longer fits
    in his time, so a forecast that errs a little sends nobody away who has waited.
    """
    longest_s = claim.expected_s if claim.longest_s is None else claim.longest_s
    return timeout_s - min(longest_s, LONG * claim.expected_s, max(claim.expected_s, timeout_s / 2))
