"""Prices against the card: ``python -m loadtests.bench_prices [SECTION ...]`` writes ``results/prices_h200.json``.

Sections, all of them by default, in this order: ``calibrate`` measures a profile of each plain model; ``plain`` runs
calls that are drawn by a seed taken after that, and compares allocated peaks with the law of shapes and reserved bytes
with the bound; ``standing`` loads engines one after another on the otherwise empty card; ``cost`` times the pricing
itself. A section that runs replaces its own figures and rows in a record that is there.
"""

import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common.wire import LlamaLimits, UnetLimits
from estimator import llama, profile, unet
from estimator.plain import GenerateLaw, path_of
from estimator.plain_unet import ForwardLaw
from estimator.profile import ALLOCATOR_ENV
from estimator.shapes import named
from loadtests import price_runs, record, standing_runs

NAME = "prices_h200"
FOLDER = Path(os.environ.get("OUT", record.RESULTS))
PROFILES = Path(os.environ.get("OUT", Path(profile.__file__).parent / "profiles"))
PLAIN: Sequence[tuple[str, str, int]] = (
    ("llama-3-8b", "bfloat16", 2),
    ("llama-3.2-1b", "bfloat16", 3),
    ("unet-64x2", "float16", 2),
    ("unet-64x2", "float32", 1),
)
"""Model, dtype, and how many processes run it at once."""
SECONDS = float(os.environ.get("SECONDS", "60"))
"""How long the held-out runs of one process go on."""
PRICES = 20_000

Figures = dict[str, float]
Rows = list[dict[str, Any]]


def main() -> None:
    """The sections that were asked for, each written as soon as it is done."""
    if not torch.cuda.is_available():
        sys.exit("bench_prices compares prices with a card, and this torch sees none")
    sections: dict[str, Callable[[Figures], Rows]] = {
        "calibrate": calibrate,
        "plain": plain,
        "standing": standing,
        "cost": cost,
    }
    for section in sys.argv[1:] or sections:
        figures: Figures = {}
        rows = [{"section": section} | row for row in sections[section](figures)]
        print(record.write(NAME, *_merged(section, figures, rows), torch.cuda.get_device_name()), figures, flush=True)


def calibrate(figures: Figures) -> Rows:
    """A profile of each plain model; the first, the largest, gives the time."""
    runs = []
    for model, dtype, _ in PLAIN:
        command = [
            sys.executable,
            "-m",
            "backend.calibrate",
            model,
            "--dtype",
            dtype,
            "--out",
            str(_file(model, dtype)),
        ]
        runs.append((model, dtype, time.monotonic(), subprocess.Popen(command, env=_environ())))
    rows: Rows = []
    for model, dtype, started_s, run in runs:
        if run.wait():
            raise RuntimeError(f"{model} {dtype} was not calibrated")
        found = profile.read(_file(model, dtype))
        paths = {path: [holes.small_factor, holes.large_factor, holes.samples] for path, holes in found.paths.items()}
        elapsed_s = time.monotonic() - started_s
        rows.append({"what": f"{model}-{dtype}", "s": found.calibration_s, "waited_s": elapsed_s, "paths": paths})
    figures["calibration_s"] = max(row["s"] for row in rows)
    return rows


def plain(figures: Figures) -> Rows:
    """Held-out calls, drawn by a seed that did not exist when the profiles were measured."""
    seed = secrets.randbelow(10**9)
    figures["held_out_seed"] = seed
    print(f"held-out seed {seed}", flush=True)
    runs: list[tuple[Path, subprocess.Popen[bytes]]] = []
    for model, dtype, count in PLAIN:
        for _ in range(count):
            out = FOLDER / f"held-out-{len(runs)}.json"
            what = [str(_file(model, dtype)), str(seed + len(runs)), str(SECONDS), str(out)]
            command = [sys.executable, "-m", "loadtests.price_runs", *what]
            runs.append((out, subprocess.Popen(command, env=_environ())))
    rows: Rows = []
    for out, run in runs:
        if run.wait():
            raise RuntimeError(f"the held-out runs for {out.name} failed")
        rows += json.loads(out.read_text(encoding="utf-8"))
        out.unlink()
    figures.update(plain_figures(rows))
    return rows


def plain_figures(rows: Sequence[Mapping[str, Any]]) -> Figures:
    """Errors of the law and of the bound; images of odd sizes are counted apart."""
    errors = {kind: [_error(row) for row in rows if _kind(row) == kind] for kind in ("llama", "unet", "unet_odd")}
    figures: Figures = {}
    for kind, found in errors.items():
        figures[f"{kind}_n"] = len(found)
        figures[f"{kind}_p95_error"] = float(np.percentile(np.abs(found), 95)) if found else float("nan")
        figures[f"{kind}_max_error"] = float(np.abs(found).max()) if found else float("nan")
    bounded = [row for row in rows if "bound" in row]
    excesses = [row["bound"] / row["reserved"] - 1 for row in bounded if row["reserved"]]
    figures["bound_n"] = len(bounded)
    figures["bound_under_share"] = sum(row["reserved"] > row["bound"] for row in bounded) / len(bounded)
    figures["bound_median_excess"] = float(np.median(excesses))
    return figures


def standing(figures: Figures) -> Rows:
    """Engines, each alone on the card: NVML's difference against what was predicted before it was loaded."""
    rows = standing_runs.rows()
    errors = {row["engine"]: abs(row["predicted"] / row["used"] - 1) for row in rows}
    worst = [abs(row["predicted"] / row["used"] - 1) for row in rows if "page" in row]
    figures["standing_n"] = len(worst)
    figures["standing_max_error"] = max(worst)
    figures["unet_standing_error"] = errors.get("unet-64", float("nan"))
    figures["grant_leftover_bytes"] = max(row["leftover"] for row in rows if "page" in row)
    figures["grant_leftover_over_a_page_bytes"] = max(row["leftover"] - row["page"] for row in rows if "page" in row)
    return rows


def cost(figures: Figures) -> Rows:
    """Time to price requests of all kinds, one at a time on one core."""
    text = LlamaLimits(8192, 128_256, 256, 32 * 2**20, 700, "")
    image = UnetLimits(1, ("nucleus",), 512, 128, 2**30, 2, 10**9, 0.5)
    generate, forward = GenerateLaw(named("llama-3-8b"), "bfloat16"), ForwardLaw(unet.UnetShape(64, 2), "float16")
    profiles = {
        name: profile.read(_file(*name.rsplit("-", 1))) for name in ("llama-3-8b-bfloat16", "unet-64x2-float16")
    }
    dice = random.Random(1)
    calls = [price_runs.draw_call(dice) for _ in range(1000)]
    images = [price_runs.draw_images(dice) for _ in range(1000)]
    images = [one for one in images if one.path == "grid"]

    def generated(index: int) -> None:
        call = calls[index % len(calls)]
        peak = generate.peak(call)
        profiles["llama-3-8b-bfloat16"].bound_bytes(peak, path_of(call, peak))

    def forwarded(index: int) -> None:
        one = images[index % len(images)]
        profiles["unet-64x2-float16"].bound_bytes(forward.peak(one), one.path)

    kinds: Mapping[str, Callable[[int], object]] = {
        "llama request": lambda index: llama.price_request(text, 1 + index % 8000, 128),
        "unet request": lambda index: unet.price_request(image, 200 + index, 3000, 0, False),
        "plain generate, with its bound": generated,
        "plain unet, with its bound": forwarded,
    }
    rows: Rows = [{"what": kind} | _times_us(price) for kind, price in kinds.items()]
    figures["price_p99_us"] = max(row["p99_us"] for row in rows)
    return rows


def _times_us(price: Callable[[int], object]) -> dict[str, float]:
    taken = []
    for index in range(PRICES):
        started = time.perf_counter_ns()
        price(index)
        taken.append((time.perf_counter_ns() - started) / 1e3)
    return {f"p{percent}_us": round(float(np.percentile(taken, percent)), 2) for percent in (50, 99)}


def _merged(section: str, figures: Figures, rows: Rows) -> tuple[Figures, Rows]:
    """With what other sections have written before."""
    file = FOLDER / f"{NAME}.json"
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"figures": {}, "rows": []}
    kept = [row for row in before["rows"] if row["section"] != section]
    return before["figures"] | figures, kept + rows


def _kind(row: Mapping[str, Any]) -> str:
    if row["what"].startswith("llama"):
        return "llama"
    return "unet_odd" if row["path"] == "odd" else "unet"


def _error(row: Mapping[str, Any]) -> float:
    return float(row["predicted"] / row["measured"] - 1)


def _file(model: str, dtype: str) -> Path:
    return PROFILES / f"{model}-{dtype}.json"


def _environ() -> dict[str, str]:
    return dict(os.environ) | {ALLOCATOR_ENV: "expandable_segments:True", "TRANSFORMERS_VERBOSITY": "error"}


if __name__ == "__main__":
    main()
