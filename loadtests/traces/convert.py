"""``python -m loadtests.traces.convert SOURCE.csv NAME --about "…"``: a CSV of calls into the repository's own form."""

import argparse
import csv
from datetime import datetime
from pathlib import Path

from common.errors import SettingsError
from loadtests.traces import trace
from loadtests.traces.trace import Call

TIMES = ("arrival_s", "TIMESTAMP")
PROMPTS = ("prompt_tokens", "ContextTokens")
OUTPUTS = ("output_tokens", "GeneratedTokens")


def main() -> None:
    """Converts and says what came out."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.traces.convert", description=__doc__)
    parser.add_argument("source", type=Path, help="CSV with a header: time, prompt tokens, output tokens")
    parser.add_argument("name", help="of the trace, as campaigns call it")
    parser.add_argument("--about", action="append", required=True, help="source and licence; may be given repeatedly")
    asked = parser.parse_args()
    calls = read_csv(asked.source)
    path = trace.write(asked.name, calls, asked.about)
    print(f"{path}: {len(calls)} calls in {calls[-1].at_s:.0f} s, {path.stat().st_size} bytes")


def read_csv(source: Path) -> list[Call]:
    """Calls of a published trace, from its first on; raises SettingsError for other columns."""
    with source.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines)
        time, prompt, output = (_column(rows.fieldnames or (), names, source) for names in (TIMES, PROMPTS, OUTPUTS))
        calls = [Call(_seconds(row[time]), int(row[prompt]), int(row[output])) for row in rows]
    if not calls:
        raise SettingsError(f"{source} holds no calls")
    first_s = min(call.at_s for call in calls)
    moved = [Call(call.at_s - first_s, call.prompt_tokens, call.output_tokens) for call in calls]
    return sorted(moved, key=lambda call: call.at_s)


def _column(present: object, names: tuple[str, ...], source: Path) -> str:
    assert isinstance(present, list | tuple)
    found = [name for name in names if name in present]
    if not found:
        raise SettingsError(f"{source} has no column {' or '.join(names)}")
    return found[0]


def _seconds(text: str) -> float:
    """Seconds, or a point in time as Azure writes it, to the microsecond."""
    try:
        return float(text)
    except ValueError:
        whole, _, fraction = text.partition(".")
        return datetime.fromisoformat(whole).timestamp() + float(f"0.{fraction or 0}")


if __name__ == "__main__":
    main()
