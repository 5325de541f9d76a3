"""``python -m loadtests.chaos``: faults under load, a figure for each thing that clients notice.

Without ``--card`` the faults of processes, on the CPU; with it those of memory too, each part with settings of its own.
Each part can be run alone (``--only kill_llama,storm``); ``--merge FILE ...`` makes one result of several.
"""

import argparse
import json
import math
import os
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.settings import Settings
from loadtests import dummy_model, record
from loadtests.chaos import memory, processes
from loadtests.chaos.service import Service

CPU = {"card.device": "cpu", "llama.pages": "80", "unet.canvas": "64MiB"}
"""Settings of the service where there is no card."""
CARD = {"card.device": "cuda"}
WALLED = {"card.device": "cuda", "card.total": "24GiB", "llama.dummy_weights": "true", "llama.max_batch": "64"}
"""Both processes together within what a common card has, with a model that fills most of it."""
MEMORY = ("shortage", "neighbour", "overload")
PARTS = (*processes.FAULTS, *MEMORY)

Row = dict[str, Any]


def main() -> None:
    """The parts that were asked for, one after the other; writes what was found even when a later one breaks."""
    arguments = _read_arguments()
    if arguments.merge:
        print(_merge(arguments.name, arguments.merge))
        return
    rows: list[Row] = []
    for row in _rows(arguments):
        row["load_average"] = os.getloadavg()[0]
        print(json.dumps(row), flush=True)
        rows.append(row)
        record.write(arguments.name, _figures(rows), rows, _card() if arguments.card else "")


def _read_arguments() -> Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.chaos", description=__doc__)
    parser.add_argument("--card", action="store_true", help="on CUDA, the parts of memory too")
    parser.add_argument("--only", help=f"parts, separated by commas: {', '.join(PARTS)}")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="results of parts, to be made one")
    parser.add_argument("--name", help="of the result; chaos_cpu, or with --card chaos_h200")
    parser.add_argument("--times", type=int, default=100, help="how often memory runs out at each place")
    parser.add_argument("--requests", type=int, default=10_000, help="of the overload")
    parser.add_argument("--seconds", type=float, default=400.0, help="within which they come")
    parser.add_argument("--most-tokens", type=int, default=4096, help="at which prompts are cut; answers at a 16th")
    arguments = parser.parse_args()
    arguments.name = arguments.name or ("chaos_h200" if arguments.card else "chaos_cpu")
    default = PARTS if arguments.card else tuple(processes.FAULTS)
    arguments.only = arguments.only.split(",") if arguments.only else default
    unknown = sorted(set(arguments.only) - set(PARTS))
    if unknown:
        parser.error(f"--only: there is no {unknown[0]!r}, only {', '.join(PARTS)}")
    return arguments


def _rows(arguments: Namespace) -> Iterator[Row]:
    """One row a part. The faults of processes share a service, the others want one of their own."""
    base = CARD if arguments.card else CPU
    if "shortage" in arguments.only:
        yield from _shortages(arguments)
    if set(arguments.only) & {*processes.FAULTS, "neighbour"}:
        with Service(base) as service:
            for part in arguments.only:
                if part in processes.FAULTS:
                    yield {"part": part} | processes.FAULTS[part](service)
            if "neighbour" in arguments.only:
                yield {"part": "neighbour"} | memory.neighbour(service)
    if "overload" in arguments.only:
        with _walled(card=arguments.card) as settings, Service(settings) as service:
            told = memory.overload(service, arguments.requests, arguments.seconds, arguments.most_tokens)
            yield {"part": "overload"} | told


def _shortages(arguments: Namespace) -> Iterator[Row]:
    """Torch is imported for this part alone."""
    from loadtests.chaos import shortage

    sections: dict[str, Any] = {"card": {"device": "cuda" if arguments.card else "cpu"}, "llama": {"pages": 80}}
    return shortage.shortages(Settings.model_validate(sections), arguments.times)


@contextmanager
def _walled(*, card: bool) -> Iterator[dict[str, str]]:
    """Settings of the overload; on the CPU those of the other parts."""
    if not card:
        yield CPU
        return
    with tempfile.TemporaryDirectory() as folder:
        dummy_model.write(Path(folder), dummy_model.LLAMA_3_8B)
        yield WALLED | {"llama.model": folder}


def _card() -> str:
    import torch

    return str(torch.cuda.get_device_name())


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
