"""The raw data of one contestant, as a run left it."""

import gzip
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from common.errors import SettingsError
from loadtests.campaigns.campaign import Campaign
from loadtests.campaigns.contestants import OURS
from loadtests.campaigns.figures import Figures, of_campaign, of_phase, windows
from loadtests.campaigns.watch import Sample
from loadtests.users.outcome import End, Outcome


@dataclass(frozen=True)
class Run:
    """What one contestant did in a campaign."""

    told: dict[str, Any]
    """``run.json``: name, says, about, settings, …"""
    outcomes: list[Outcome]
    samples: list[Sample]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises SettingsError where a file is missing or not what a run writes."""
        try:
            told = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            outcomes = [Outcome.from_json(line) for line in _lines(folder / "requests.jsonl.gz")]
            samples = [Sample.from_json(line) for line in _lines(folder / "samples.jsonl.gz")]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise SettingsError(f"{folder} holds no complete run: {error}") from None
        return cls(told, sorted(outcomes, key=lambda outcome: outcome.number), samples)

    @property
    def name(self) -> str:
        """Of the contestant."""
        return str(self.told["name"])

    @property
    def ours(self) -> bool:
        """Whether it is the service that the gates are about."""
        return self.name == OURS

    @cached_property
    def begins_unix_s(self) -> float:
        """When the schedule began."""
        return min((outcome.due_unix_s for outcome in self.outcomes), default=float(self.told["began_unix_s"]))

    def phases(self, campaign: Campaign) -> dict[str, Figures]:
        """Phase -> figures."""
        found = {}
        for phase, (from_s, to_s) in windows(campaign).items():
            outcomes = [outcome for outcome in self.outcomes if outcome.phase == phase]
            latest = self.begins_unix_s + to_s
            samples = [s for s in self.samples if self.begins_unix_s + from_s <= s.unix_s < latest]
            found[phase] = of_phase(outcomes, samples, to_s - from_s)
        return found

    def whole(self) -> Figures:
        """Figures of the whole campaign; an out-of-memory that only the service saw counts like one that was told."""
        figures = of_campaign(self.outcomes, self.samples)
        if self.told.get("leaked_bytes") is not None and self.told["leaked_bytes"] >= 0:
            figures["leaked_bytes"] = float(self.told["leaked_bytes"])
        counted = self.told.get("oom_counted")
        if self.ours and counted is None:
            del figures["oom_count"]
        elif counted:
            figures["oom_count"] = max(figures["oom_count"], float(counted))
        return figures

    def refusals(self) -> dict[tuple[str, int, str], int]:
        """(kind, status, reason without its numbers) -> how many of the answers that were not good."""
        found: dict[tuple[str, int, str], int] = {}
        for outcome in self.outcomes:
            if outcome.end not in (End.GOOD, End.LEFT):
                key = (f"{outcome.kind}: {outcome.end}", outcome.status, _reason(outcome))
                found[key] = found.get(key, 0) + 1
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def read_all(folders: list[Path]) -> list[Run]:
    """Every run below `folders`, ours first, the others as they were measured; raises SettingsError where none is."""
    found = [Run.read(path.parent) for folder in folders for path in folder.glob("*/run.json")]
    if not found:
        raise SettingsError(f"no runs in {', '.join(map(str, folders))}")
    return sorted(found, key=lambda run: (not run.ours, run.told["began_unix_s"]))


def _lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def _reason(outcome: Outcome) -> str:
    """Code and message; digits are the numbers of one request."""
    message = "".join("#" if letter.isdigit() else letter for letter in outcome.message)
    while "##" in message or "#,#" in message or "#.#" in message:
        message = message.replace("#,#", "#").replace("#.#", "#").replace("##", "#")
    return f"{outcome.code} {message}".strip()[:160]
