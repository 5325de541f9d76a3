"""Whether a campaign has passed. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from loadtests.campaigns.campaign import Gates


@dataclass(frozen=True)
class Verdict:
    """One gate."""

    gate: str
    measured: float | None
    """None where it could not be measured: then it does not hold."""
    limit: float
    holds: bool

    def __str__(self) -> str:
        measured = "not measured" if self.measured is None else f"{self.measured:g}"
        return f"{'holds' if self.holds else 'FAILS'}  {self.gate}: {measured}, limit {self.limit:g}"


def judge(gates: Gates, figures: Mapping[str, float]) -> list[Verdict]:
    """A verdict for every gate that is asked."""
    at_most = {
        "oom_count": gates.max_oom,
        "hung_count": gates.max_hung,
        "error_count": gates.max_errors,
        "leaked_bytes": gates.max_leaked_bytes,
        "price_overrun_ratio": gates.max_price_overrun_ratio,
        "false_refusal_share": gates.max_false_refusal_share,
        "refusal_p95_s": gates.max_refusal_p95_s,
        "rss_growth": gates.max_rss_growth,
    }
    verdicts = [_at_most(name, figures, limit) for name, limit in at_most.items() if limit is not None]
    answers = figures.get("good_count", 0.0)
    return [*verdicts, Verdict("good_count", answers, gates.min_answers, answers >= gates.min_answers)]


def _at_most(name: str, figures: Mapping[str, float], limit: float) -> Verdict:
    measured = figures.get(name)
    if measured is None and name == "refusal_p95_s" and not figures.get("refused_count", 0.0):
        measured = 0.0
    return Verdict(name, measured, limit, measured is not None and measured <= limit)
