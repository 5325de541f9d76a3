"""A recorded stream of calls to a language model: when each came, how long its prompt and its answer were."""

import csv
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from common.errors import SettingsError

FOLDER = Path(__file__).parent
SUFFIX = ".csv.gz"
COLUMNS = ("arrival_ms", "prompt_tokens", "output_tokens")


@dataclass(frozen=True)
class Call:
    """One recorded call."""

    at_s: float
    """From the first call of the trace."""
    prompt_tokens: int
    output_tokens: int


def read(name: str, folder: Path = FOLDER) -> list[Call]:
    """The calls of trace `name`, in order of arrival; raises SettingsError for what is no trace."""
    path = folder / (name + SUFFIX)
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
            rows = csv.DictReader(line for line in lines if not line.startswith("#"))
            if tuple(rows.fieldnames or ()) != COLUMNS:
                raise SettingsError(f"trace {path}: its columns must be {', '.join(COLUMNS)}")
            calls = [Call(int(row[COLUMNS[0]]) / 1000, *(int(row[name]) for name in COLUMNS[1:])) for row in rows]
    except FileNotFoundError:
        known = ", ".join(sorted(file.name.removesuffix(SUFFIX) for file in folder.glob("*" + SUFFIX)))
        raise SettingsError(f"there is no trace {name!r}; there are: {known}") from None
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise SettingsError(f"trace {path}: {error}") from None
    if any(later.at_s < call.at_s for call, later in pairwise(calls)):
        raise SettingsError(f"trace {path}: its calls must be in order of arrival")
    return calls


def write(name: str, calls: Iterable[Call], about: Sequence[str], folder: Path = FOLDER) -> Path:
    """Writes a trace with `about` in its head and returns its path; the same calls give the same bytes."""
    lines = [*(f"# {line}" for line in about), ",".join(COLUMNS)]
    lines += [f"{round(call.at_s * 1000)},{call.prompt_tokens},{call.output_tokens}" for call in calls]
    path = folder / (name + SUFFIX)
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))
    return path
