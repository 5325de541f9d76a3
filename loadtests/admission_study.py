"""One trace through the gate at several loads: what was served in time, who was refused, and whether rightly."""

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from common.sections import Admission as AdmissionSettings
from common.wire import LlamaLimits
from frontend import trace
from frontend.admission import Admission
from frontend.backfill import Reservations
from frontend.engine_model import Rates
from frontend.hindsight import Hindsight, Refusal
from frontend.ledger import Clock, Ledger
from frontend.simulation import MakeGate, Outcome, Simulation
from frontend.trace import Request
from loadtests.strict_line import NoPassing, StrictLine

DEADLINE_S = 30.0
WINDOW_S = 10.0
MEAN_LOAD = 0.8
"""Of the account's byte-seconds, at a load of 1."""
WATCHED = 64
"""Refusals that are watched at once."""


@dataclass(frozen=True)
class Study:
    """A trace, a card and an engine; what a request holds, and for how long, with the account always full."""

    name: str
    requests: list[Request]
    """Those that the card can serve at all, at the rate that is a load of 1."""
    held_s: list[float]
    limits: LlamaLimits
    rates: Rates
    never: int
    """Requests of the trace that are larger than the whole account, or than the context."""

    @classmethod
    def of(cls, name: str, requests: Sequence[Request], limits: LlamaLimits, rates: Rates) -> "Study":
        """Finds the rate: all requests at once, through a strict line, say how long each holds its bytes."""
        at_once = [trace.faster([request], math.inf)[0] for request in requests]
        full = Simulation(limits, rates, StrictLine, timeout_s=1e9).replay(at_once)
        kept = [(request, outcome) for request, outcome in zip(requests, full, strict=True) if not outcome.refused]
        demand = sum(outcome.price_bytes * outcome.held_s for _, outcome in kept)
        span_s = requests[-1].arrival_s - requests[0].arrival_s
        factor = MEAN_LOAD * limits.pages * limits.page_bytes * span_s / demand
        scaled = trace.faster([request for request, _ in kept], factor)
        held_s = [outcome.held_s for _, outcome in kept]
        return cls(name, scaled, held_s, limits, rates, len(requests) - len(kept))

    @property
    def capacity_bytes(self) -> int:
        """Of the account."""
        return self.limits.pages * self.limits.page_bytes

    def measure(self, load: float) -> dict[str, Any]:
        """Everything at this load, as one row."""
        requests = trace.faster(self.requests, load)
        known: list[tuple[float, float]] = []
        ours = self._replay(requests, _admission(known))
        strict = self._replay(requests, _admission([], NoPassing))
        naive = self._replay(requests, StrictLine)
        returning = self._replay(requests, _admission([]), retries=True)
        span_s = requests[-1].arrival_s
        again = [outcome.again for outcome in returning if outcome.again is not None]
        errors = [abs(predicted_s - real_s) / real_s for predicted_s, real_s in known if real_s > 0]
        row = {
            "what": "replay",
            "trace": self.name,
            "load": load,
            "requests": len(requests),
            "never": self.never,
            "arrivals_per_s": len(requests) / span_s,
            "goodput": _goodput(ours, span_s) / (span_s * self.capacity_bytes),
            "goodput_over_fifo": _ratio(_goodput(ours, span_s), _goodput(naive, span_s)),
            "goodput_over_fifo_with_refusals": _ratio(_goodput(ours, span_s), _goodput(strict, span_s)),
            "goodput_over_clairvoyant": _ratio(_goodput(ours, span_s), self._clairvoyant(requests)),
            "starved": _count(ours, lambda outcome: outcome.refused == "after_waiting"),
            "false_refusal_share": self._false_refusals(ours) / len(ours),
            "late": _count(ours, lambda outcome: outcome.started_s is not None and not outcome.in_time),
            "watched_refusals": len(errors),
            "retry_after_median_error": statistics.median(errors) if errors else None,
            "retries": len(again),
            "retry_admitted_share": _share(again, lambda outcome: outcome.started_s is not None),
        }
        for name, outcomes in (("", ours), ("fifo_", naive), ("fifo_with_refusals_", strict)):
            row[f"{name}in_time_share"] = _share(outcomes, lambda outcome: outcome.in_time)
            row[f"{name}wait_p50_s"], row[f"{name}wait_p99_s"] = _waits(outcomes)
        return row

    def _replay(self, requests: list[Request], gate: MakeGate, retries: bool = False) -> list[Outcome]:
        return Simulation(self.limits, self.rates, gate, DEADLINE_S, retries).replay(requests)

    def _clairvoyant(self, requests: list[Request]) -> float:
        """Per window the smaller of the byte-seconds offered in it and those that the account holds."""
        offered: dict[int, float] = {}
        for request, held_s, price_bytes in zip(requests, self.held_s, self._prices(requests), strict=True):
            window = int(request.arrival_s / WINDOW_S)
            offered[window] = offered.get(window, 0.0) + price_bytes * held_s
        return sum(min(size, WINDOW_S * self.capacity_bytes) for size in offered.values())

    def _prices(self, requests: Iterable[Request]) -> list[int]:
        tokens, page_bytes = self.limits.page_tokens, self.limits.page_bytes
        return [-(-(request.prompt_tokens + request.max_tokens) // tokens) * page_bytes for request in requests]

    def _false_refusals(self, outcomes: list[Outcome]) -> int:
        """Refused, though bytes that nobody used would have served it in time, at nobody's cost."""
        moments, free_bytes = _free(outcomes, self.capacity_bytes)
        found = 0
        for outcome, held_s in zip(outcomes, self.held_s, strict=True):
            if outcome.refused:
                latest_s = outcome.arrived_s + DEADLINE_S
                found += _fits_between(moments, free_bytes, outcome.price_bytes, outcome.arrived_s, latest_s, held_s)
        return found


def _admission(known: list[tuple[float, float]], passing: type[Reservations] = Reservations) -> MakeGate:
    """The real gate with the settings as shipped; `known` takes (predicted, real) seconds of watched refusals."""

    def remember(refusal: Refusal, real_s: float) -> None:
        known.append((refusal.predicted_s, real_s))

    def make(ledger: Ledger, clock: Clock) -> Admission:
        gate = Admission(ledger, AdmissionSettings(), clock, Hindsight(WATCHED), passing)
        gate.hindsight.on_known.append(remember)
        return gate

    return make


def _goodput(outcomes: Iterable[Outcome], span_s: float) -> float:
    """Byte-seconds, up to the last arrival, of requests that met their deadline."""
    return sum(
        outcome.price_bytes * max(0.0, min(span_s, outcome.ended_s or 0.0) - (outcome.started_s or 0.0))
        for outcome in outcomes
        if outcome.in_time
    )


def _free(outcomes: Iterable[Outcome], capacity_bytes: int) -> tuple[list[float], list[int]]:
    """Moments, and the bytes that nobody held from each of them on."""
    changes: dict[float, int] = {0.0: capacity_bytes}
    for outcome in outcomes:
        if outcome.started_s is not None and outcome.ended_s is not None:
            changes[outcome.started_s] = changes.get(outcome.started_s, 0) - outcome.price_bytes
            changes[outcome.ended_s] = changes.get(outcome.ended_s, 0) + outcome.price_bytes
    moments = sorted(changes)
    return moments, list(accumulate(changes[moment] for moment in moments))


def _fits_between(
    moments: list[float], free_bytes: list[int], need_bytes: int, from_s: float, until_s: float, held_s: float
) -> bool:
    """Whether so many bytes were free for so long, all the time, between two moments."""
    since_s = from_s
    index = max(0, bisect_left(moments, from_s) - 1)
    while index < len(moments) and moments[index] < until_s:
        ends_s = moments[index + 1] if index + 1 < len(moments) else math.inf
        if free_bytes[index] < need_bytes:
            since_s = ends_s
        elif min(ends_s, until_s) - since_s >= held_s:
            return True
        index += 1
    return False


def _waits(outcomes: Iterable[Outcome]) -> tuple[float, float]:
    waits = sorted(outcome.waited_s for outcome in outcomes if outcome.waited_s is not None)
    return waits[len(waits) // 2], waits[len(waits) * 99 // 100]


def _count(outcomes: Iterable[Outcome], holds: Any) -> int:
    return sum(1 for outcome in outcomes if holds(outcome))


def _share(outcomes: Sequence[Outcome], holds: Any) -> float | None:
    return _count(outcomes, holds) / len(outcomes) if outcomes else None


def _ratio(value: float, base: float) -> float:
    return value / base if base else math.inf


Row = Mapping[str, Any]
