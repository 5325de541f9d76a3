"""The record of a benchmark: figures, rows, and everything needed to believe and repeat them."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "triton", "numpy", "fastapi", "uvicorn", "tritonclient", "locust")


def write(
    name: str,
    figures: Mapping[str, float],
    rows: Sequence[Mapping[str, Any]],
    machine: str = "",
    about: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> Path:
    """Writes ``<name>.json`` into `folder`, else into ``$OUT`` where that is set, else into ``results``; its path.

    `figures` are the numbers that are quoted, `rows` the measurements behind them; `machine` names an accelerator.
    `about` describes a run of another time or place, as :func:`describe` did there.
    """
    record = {**(about or describe(machine)), "figures": dict(figures), "rows": list(rows)}
    folder = folder or Path(os.environ.get("OUT", RESULTS))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def describe(machine: str = "") -> dict[str, Any]:
    """Command, commit, time, machine and versions of this run."""
    return {
        "command": " ".join(["python", "-m", _module(), *sys.argv[1:]]),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{machine or _processor()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version()} | dict(_versions()),
    }


def _module() -> str:
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).stem


def _commit() -> str:
    """The commit that ran, from git or, in a copy without history, from ``$COMMIT``."""
    run = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return run.stdout.strip() or os.environ.get("COMMIT", "unknown")


def _versions() -> list[tuple[str, str]]:
    found = []
    for package in PACKAGES:
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
