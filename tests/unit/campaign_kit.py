"""Outcomes and samples of campaigns that were never run."""

from typing import Any

from loadtests.campaigns.campaign import Campaign, Kind
from loadtests.campaigns.watch import Sample
from loadtests.users.outcome import End, Outcome

CAMPAIGN = Campaign.model_validate(
    {
        "name": "mine",
        "about": "a test",
        "traffic": {"mix": {"chat": 1}},
        "phases": [{"name": "1x", "duration_s": 10, "time_factor": 1.0}],
    }
)


def outcome(number: int = 0, end: End = End.GOOD, kind: Kind = Kind.CHAT, **told: Any) -> Outcome:
    """One that was due `number` seconds after 1000."""
    due = {"due_unix_s": 1000.0 + number, "sent_unix_s": 1000.0 + number, "latency_s": 1.0, "deadline_s": 30.0}
    return Outcome(number=number, phase="1x", kind=kind, end=end, **(due | told))


def sample(at_s: float, held: int = 0, *, waiting: int = 0, capacity: int = 100, **told: Any) -> Sample:
    """The ledger, so many seconds after 1000."""
    pages = {
        "capacity_bytes": capacity,
        "held_bytes": held,
        "available_bytes": capacity - held,
        "engine_used_bytes": held,
    }
    return Sample(1000.0 + at_s, accounts={"llama.pages": pages}, waiting=waiting, standing_bytes=500, **told)


def priced(quoted: int, held: int, peak: int = 0) -> dict[str, Any]:
    """The ``vram`` object of an answer."""
    return {"quoted_bytes": quoted, "held_bytes": held, "peak_bytes": peak, "rung": "none"}
