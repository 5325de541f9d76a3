"""``python -m loadtests.chaos``: faults under load, a figure for each thing that clients notice.

Without a card the faults of processes; with one (``--card``) those of memory too. Each part can be run alone
(``--only kill_llama,storm``); the results of parts are put together with ``--merge FILE ...``.
"""

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtests import record
from loadtests.chaos import processes
from loadtests.chaos.service import Service

CPU = {"card.device": "cpu", "llama.pages": "80", "unet.canvas": "64MiB"}
"""Settings of the service where there is no card."""


def main() -> None:
    """The parts that were asked for, one after the other; writes what was found even when a later one breaks."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.chaos", description=__doc__)
    parser.add_argument("--only", help="parts, separated by commas")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="results of parts, to be made one")
    parser.add_argument("--name", default="chaos_cpu", help="of the result")
    arguments = parser.parse_args()
    if arguments.merge:
        print(_merge(arguments.name, arguments.merge))
        return
    wanted = arguments.only.split(",") if arguments.only else list(processes.FAULTS)
    unknown = sorted(set(wanted) - processes.FAULTS.keys())
    if unknown:
        parser.error(f"--only: there is no {unknown[0]!r}, only {', '.join(processes.FAULTS)}")
    rows: list[dict[str, Any]] = []
    with Service(CPU) as service:
        for part in wanted:
            row = processes.FAULTS[part](service)
            print(part, json.dumps(row), flush=True)
            rows.append({"part": part} | row)
            record.write(arguments.name, _figures(rows), rows)


def _figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """``part.key`` -> number; what did not happen at all (NaN) is -1, since JSON has no such number."""
    return {
        f"{row['part']}.{key}": -1.0 if math.isnan(value) else round(float(value), 4)
        for row in rows
        for key, value in row.items()
        if isinstance(value, int | float)
    }


def _merge(name: str, files: list[Path]) -> Path:
    """One result of several; each row says which command, on which commit, gave it."""
    told: list[Mapping[str, Any]] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    rows = [
        row | {"command": one["command"], "commit": one["commit"], "date": one["date"]}
        for one in told
        for row in one["rows"]
    ]
    figures = {key: value for one in told for key, value in one["figures"].items()}
    machine = str(told[0]["machine"])
    path = record.write(name, figures, rows)
    written = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(written | {"machine": machine, "versions": told[0]["versions"]}, indent=1) + "\n")
    return path


if __name__ == "__main__":
    main()
