"""The arrivals of a campaign: open loop, so a slow service gets no fewer of them."""

import random
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TypeVar

from loadtests.campaigns.campaign import Campaign, Kind, Phase, Traffic
from loadtests.traces import trace
from loadtests.traces.trace import Call

T = TypeVar("T")


@dataclass(frozen=True)
class Shot:
    """One request that will be sent, whatever became of the others."""

    number: int
    at_s: float
    """From the start of the campaign."""
    phase: str
    kind: Kind
    prompt_tokens: int
    output_tokens: int
    megapixels: float
    seed: int


def shots(campaign: Campaign) -> list[Shot]:
    """Every arrival, in order; the same for the same campaign."""
    calls = trace.read(campaign.traffic.trace)
    found: list[Shot] = []
    begins_s = 0.0
    for phase in campaign.phases:
        for at_s, call in _arrivals(calls, phase):
            found.append(_shot(len(found), begins_s + at_s, phase.name, call, campaign.traffic))
        begins_s += phase.duration_s + phase.pause_s
    return found


def _arrivals(calls: list[Call], phase: Phase) -> Iterator[tuple[float, Call]]:
    """Calls of the phase with their time from its start; a trace that ends early begins again."""
    first = bisect_left(calls, phase.trace_from_s, key=lambda call: call.at_s)
    span_s = calls[-1].at_s + 1.0
    for index, call in enumerate(islice(cycle(calls), first, None), first):
        at_s = (call.at_s + span_s * (index // len(calls)) - phase.trace_from_s) / phase.time_factor
        if at_s >= phase.duration_s:
            return
        yield at_s, call


def _shot(number: int, at_s: float, phase: str, call: Call, traffic: Traffic) -> Shot:
    choices = random.Random(f"{traffic.seed}/{number}")
    return Shot(
        number=number,
        at_s=at_s,
        phase=phase,
        kind=_draw(choices, traffic.mix),
        prompt_tokens=_scaled(call.prompt_tokens, traffic.length_factor, traffic.max_prompt_tokens),
        output_tokens=_scaled(call.output_tokens, traffic.length_factor, traffic.max_output_tokens),
        megapixels=float(_draw(choices, traffic.megapixels)),
        seed=choices.randrange(2**31),
    )


def _draw(choices: random.Random, weights: Mapping[T, float]) -> T:
    return choices.choices(list(weights), list(weights.values()))[0]


def _scaled(tokens: int, factor: float, most: int) -> int:
    return max(1, min(most, round(tokens * factor)))
