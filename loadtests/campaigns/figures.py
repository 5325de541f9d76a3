"""From outcomes and samples to figures. Pure."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from loadtests.campaigns.campaign import Campaign, Kind
from loadtests.campaigns.watch import Sample
from loadtests.users.outcome import End, Outcome

SHARES = (End.GOOD, End.LATE, End.EXPIRED, End.REFUSED, End.OOM, End.ERROR, End.HUNG)
USES = {"llama.pages": "account_use", "unet.canvas": "canvas_use"}
"""Account -> figure that says how much of it was held, in the mean."""

Figures = dict[str, float]


def of_phase(outcomes: Iterable[Outcome], samples: Sequence[Sample], duration_s: float) -> Figures:
    """Shares, goodput and percentiles of one phase's outcomes, over its `duration_s` of arrivals."""
    paying = [outcome for outcome in outcomes if outcome.kind.paying]
    good = [outcome for outcome in paying if outcome.end is End.GOOD]
    figures = {f"{end}_share": share(paying, end) for end in SHARES}
    figures |= {
        "offered_per_s": len(paying) / duration_s,
        "goodput_per_s": len(good) / duration_s,
        "good_tokens_per_s": sum(outcome.output_tokens for outcome in good) / duration_s,
        "good_megapixels_per_s": sum(outcome.megapixels for outcome in good) / duration_s,
    }
    answered = len(good) + sum(outcome.end is End.LATE for outcome in paying)
    figures["overload_ratio"] = len(paying) / max(1, answered)
    figures |= percentiles("ttft", [outcome.ttft_s for outcome in paying if outcome.ttft_s is not None])
    figures |= percentiles("latency", [outcome.latency_s for outcome in good])
    figures |= percentiles("inter_token", [outcome.gaps_s[0] for outcome in good if outcome.gaps_s])
    figures |= percentiles("refusal", [outcome.latency_s for outcome in paying if outcome.end is End.REFUSED])
    figures |= percentiles("client_lag", [outcome.sent_unix_s - outcome.due_unix_s for outcome in paying])
    return figures | account_use(samples)


def of_campaign(outcomes: Sequence[Outcome], samples: Sequence[Sample]) -> Figures:
    """What the gates ask, over all phases and kinds."""
    counts = {f"{end}_count": float(sum(outcome.end is end for outcome in outcomes)) for end in End}
    refused = [outcome for outcome in outcomes if outcome.end is End.REFUSED]
    false = false_refusals(refused, samples)
    figures = counts | price_errors(outcomes)
    figures |= {"false_refusals": float(len(false)), "false_refusal_share": len(false) / max(1, len(refused))}
    figures |= percentiles("refusal", [outcome.latency_s for outcome in refused])
    return figures | rss_growth(samples)


def share(outcomes: Sequence[Outcome], end: End) -> float:
    """Of `outcomes`, those that ended so."""
    return sum(outcome.end is end for outcome in outcomes) / max(1, len(outcomes))


def percentiles(name: str, values: Sequence[float]) -> Figures:
    """``NAME_p50_s``, ``_p95_s`` and ``_p99_s`` by nearest rank; nothing where there are no values."""
    ranked = sorted(values)
    return {
        f"{name}_p{percent}_s": ranked[math.ceil(percent / 100 * len(ranked)) - 1] for percent in (50, 95, 99) if ranked
    }


def account_use(samples: Sequence[Sample]) -> Figures:
    """Mean of held / capacity for each account of the card."""
    used: dict[str, list[float]] = {}
    for sample in samples:
        for name, account in sample.accounts.items():
            if name in USES and account["capacity_bytes"]:
                used.setdefault(USES[name], []).append(account["held_bytes"] / account["capacity_bytes"])
    return {figure: sum(shares) / len(shares) for figure, shares in used.items()}


def price_errors(outcomes: Iterable[Outcome]) -> Figures:
    """How far what was held was above its quote at the most, and how much of the quotes was held in all."""
    pairs = [(o.vram["held_bytes"], o.vram["quoted_bytes"]) for o in outcomes if o.vram.get("quoted_bytes")]
    if not pairs:
        return {}
    overruns = [max(0.0, held / quoted - 1) for held, quoted in pairs]
    return {
        "price_overrun_ratio": max(overruns),
        "held_over_quoted": sum(held for held, _ in pairs) / sum(quoted for _, quoted in pairs),
        "priced_answers": float(len(pairs)),
    }


def false_refusals(refused: Iterable[Outcome], samples: Sequence[Sample]) -> list[Outcome]:
    """Refusals for want of bytes although the looks right before and after show room for the price and no line.

    One that says *never* is false where its own numbers say that the price is within the capacity.
    """
    times_s = [sample.unix_s for sample in samples]
    found = []
    for outcome in refused:
        price_bytes, capacity_bytes = outcome.numbers.get("price_bytes"), outcome.numbers.get("capacity_bytes")
        if price_bytes is None or capacity_bytes is None:
            continue
        after = bisect_right(times_s, outcome.sent_unix_s + outcome.latency_s)
        around = samples[max(0, after - 1) : after + 1]
        idle = len(around) == 2 and all(_has_room(sample, price_bytes, capacity_bytes) for sample in around)
        if price_bytes <= capacity_bytes and (outcome.status == 413 or idle):
            found.append(outcome)
    return found


def _has_room(sample: Sample, price_bytes: int, capacity_bytes: int) -> bool:
    """A refusal names its account by the capacity alone; where two have the same both must have room."""
    asked = [account for account in sample.accounts.values() if account["capacity_bytes"] == capacity_bytes]
    return bool(asked) and not sample.waiting and all(account["available_bytes"] >= price_bytes for account in asked)


def rss_growth(samples: Sequence[Sample]) -> Figures:
    """Largest growth of a process's resident memory from the second tenth of the campaign to the last, as a share.

    The first tenth fills caches and heaps.
    """
    tenth = len(samples) // 10
    if not tenth:
        return {}
    first, last = _mean_resident(samples[tenth : 2 * tenth]), _mean_resident(samples[-tenth:])
    return {"rss_growth": max((last[role] / first[role] - 1 for role in first.keys() & last.keys()), default=0.0)}


def _mean_resident(samples: Sequence[Sample]) -> Mapping[str, float]:
    roles = {role for sample in samples for role in sample.resident_bytes}
    return {
        role: sum(sample.resident_bytes.get(role, 0) for sample in samples) / len(samples)
        for role in roles
        if all(role in sample.resident_bytes for sample in samples)
    }


def windows(campaign: Campaign) -> dict[str, tuple[float, float]]:
    """Phase -> when its arrivals begin and end, from the start of the campaign."""
    found, begins_s = {}, 0.0
    for phase in campaign.phases:
        found[phase.name] = (begins_s, begins_s + phase.duration_s)
        begins_s += phase.duration_s + phase.pause_s
    return found


def kinds(outcomes: Iterable[Outcome]) -> dict[Kind, dict[End, int]]:
    """Kind -> end -> how many."""
    found: dict[Kind, dict[End, int]] = {}
    for outcome in outcomes:
        ends = found.setdefault(outcome.kind, {})
        ends[outcome.end] = ends.get(outcome.end, 0) + 1
    return found
