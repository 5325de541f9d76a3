"""What became of one request, seen from its client."""

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from loadtests.campaigns.campaign import Kind


class End(StrEnum):
    """How it ended."""

    GOOD = "good"
    """The whole answer, within the deadline."""
    LATE = "late"
    """The whole answer after the deadline, or the service said that it would not make it."""
    REFUSED = "refused"
    """Told at once that it is not run, and why."""
    EXPIRED = "expired"
    """Waited in the service's line as long as it could, then told that it is not run."""
    OOM = "oom"
    """The service ran out of memory over it."""
    ERROR = "error"
    """Any other failure."""
    HUNG = "hung"
    """No end of any kind, long after the deadline."""
    LEFT = "left"
    """The client went away, as it was meant to."""
    REBUFFED = "rebuffed"
    """Nonsense was answered with an error of the client's, as it should be."""


@dataclass(frozen=True)
class Outcome:
    """One request of a campaign; times in seconds, ``*_unix_s`` on the wall clock."""

    number: int
    phase: str
    kind: Kind
    end: End
    due_unix_s: float
    """When it was to be sent."""
    sent_unix_s: float
    latency_s: float
    """From sending to the end."""
    deadline_s: float
    status: int = 0
    """Of HTTP; 0 where no answer came."""
    code: str = ""
    """Of a refusal or an error."""
    message: str = ""
    ttft_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    """Between the pieces of a stream: mean, median, 99th percentile, maximum."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    megapixels: float = 0.0
    vram: dict[str, Any] = field(default_factory=dict)
    """As the service told it: quoted_bytes, held_bytes, peak_bytes, rung."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Of a refusal: price_bytes, available_bytes, capacity_bytes."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of :meth:`to_json`."""
        values = json.loads(text)
        return cls(**values | {"kind": Kind(values["kind"]), "end": End(values["end"])})

    def to_json(self) -> str:
        """One line; what says nothing is left out."""
        values = {name: value for name, value in asdict(self).items() if value not in (None, "", [], {})}
        return json.dumps(values, separators=(",", ":"))


def read(path: Path) -> list[Outcome]:
    """All outcomes of a file, one a line."""
    with path.open(encoding="utf-8") as lines:
        return [Outcome.from_json(line) for line in lines]
