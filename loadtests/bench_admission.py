"""The gate by itself: how long a decision takes, whether the books ever fail, how well a card is used under load.

``python -m loadtests.bench_admission [SECTION ...] [--walks 1000000] [--share 1.0]`` writes ``results/admission.json``;
a section that runs replaces its own figures and rows in a record that is there. ``decisions`` times verdicts, ``laws``
walks at random over everything that can happen to the books, ``replays`` plays both traces at the engine's measured
speed (``results/llama_h200.json``) on the pages that Llama-3.1-8B has on a card of 24 GiB, ``gate`` takes over what
``python -m loadtests.bench_gate`` measured on the real service.

The traces do not say what a request asked for, so all ask for the longest answer of their trace. Quoted is the worse of
the two traces. *Starved*: joined the line and got nothing until its time was up. *False refusal*: refused, though bytes
that nobody used would have served it in time. A retry comes once, when it was told to, and counts as admitted if it got
its bytes then or after waiting; a trace of which nobody was refused says nothing of Retry-After.
"""

import argparse
import asyncio
import json
import math
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.errors import RequestError
from common.sections import Admission as AdmissionSettings
from common.settings import Settings
from estimator import cards
from estimator.price import Line, Price
from estimator.shapes import named
from frontend import trace
from frontend.admission import Admission
from frontend.claim import Claim
from frontend.engine_model import Rates
from frontend.ledger import Ledger
from frontend.plan import limits_on
from loadtests import ledger_walk, record
from loadtests.admission_study import Study

TRACES = ("azure_conversation_2023", "mooncake_conversation_2025")
LOADS = (1.0, 3.0, 10.0)
LEASES, WAITERS, DECISIONS, TRIES = 1000, 200, 1000, 3
PAGE_BYTES = 32 * 2**20

Figures = dict[str, float]
Rows = list[dict[str, Any]]


def main() -> None:
    """The sections that were asked for, each written as soon as it is done."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench_admission", description=__doc__)
    parser.add_argument("sections", nargs="*", default=["decisions", "replays", "laws", "gate"])
    parser.add_argument("--walks", type=int, default=1_000_000, help="random walks over the ledger")
    parser.add_argument("--share", type=float, default=1.0, help="of each trace, from its beginning")
    asked = parser.parse_args()
    sections: dict[str, Callable[[], tuple[Figures, Rows]]] = {
        "decisions": decisions,
        "laws": lambda: laws(asked.walks),
        "replays": lambda: replays(asked.share),
        "gate": _gate,
    }
    for name in asked.sections:
        figures, rows = sections[name]()
        print(record.write("admission", *_merged(name, figures, rows)), json.dumps(figures, indent=1), flush=True)


def decisions() -> tuple[Figures, Rows]:
    """Microseconds of a verdict, of each kind, with 1,000 live leases and up to 200 requests in the line.

    Before every decision a lease ends and another one begins. Each is the best of three tries in a row, which leaves
    out what other processes took of the core.
    """
    rows = asyncio.run(_decisions())
    return {"decision_p99_us": max(row["p99_us"] for row in rows)}, rows


def laws(walks: int) -> tuple[Figures, Rows]:
    """Random walks over everything that can happen to the books."""
    began_s = time.perf_counter()
    broken = ledger_walk.violations(0, walks)
    row = {"what": "walks", "walks": walks, "events": walks * ledger_walk.STEPS, "broken_seeds": broken[:100]}
    return {"law_violations": len(broken)}, [row | {"s": time.perf_counter() - began_s}]


def replays(share: float) -> tuple[Figures, Rows]:
    """Both traces at all loads."""
    limits = limits_on(Settings(), named("llama-3.1-8b"), cards.named("24GiB"))
    rates = Rates.from_record(record.RESULTS / "llama_h200.json")
    rows: Rows = []
    for name in TRACES:
        requests = trace.read(Path(__file__).parent / "traces" / f"{name}.csv.gz")
        study = Study.of(name, requests[: math.ceil(share * len(requests))], limits, rates)
        for load in LOADS:
            rows.append(study.measure(load))
            print(json.dumps(rows[-1]), flush=True)
    return _quoted(rows), [{"what": "card", "pages": limits.pages, "page_bytes": limits.page_bytes}, *rows]


def _quoted(rows: Rows) -> Figures:
    """The worse trace for every figure."""

    def worst(key: str, load: float, choose: Callable[..., float]) -> Figures:
        values = [row[key] for row in rows if row["load"] == load and row[key] is not None]
        return {f"{key}_{load:g}x": choose(values)} if values else {}

    figures: Figures = {}
    for load in LOADS:
        for key in ("goodput_over_fifo", "goodput_over_fifo_with_refusals", "goodput_over_clairvoyant"):
            figures |= worst(key, load, min)
        figures |= worst("false_refusal_share", load, max)
        figures |= worst("retry_after_median_error", load, max) | worst("retry_admitted_share", load, min)
    figures["starved"] = sum(row["starved"] for row in rows)
    figures["false_refusal_share"] = max(row["false_refusal_share"] for row in rows)
    for key in ("retry_after_median_error", "retry_admitted_share"):
        figures |= {key: figures[f"{key}_1x"]} if f"{key}_1x" in figures else {}
    return figures


async def _decisions() -> Rows:
    dice = random.Random(6)
    loop = asyncio.get_running_loop()
    ledger = Ledger(loop.time)
    capacity_bytes = 12 * LEASES * PAGE_BYTES
    ledger.set_capacity("llama.pages", capacity_bytes)
    gate = Admission(ledger, AdmissionSettings(max_wait_s=1e6), loop.time)

    def claim(pages: int) -> Claim:
        price = Price.of([Line("llama.pages", pages * PAGE_BYTES, "pages")])
        return Claim("llama", price, "boot", dice.uniform(1, 30), 60.0)

    leases = [(await gate.admit(claim(dice.randint(1, 20)), 1e6)).id for _ in range(LEASES)]
    ledger.set_capacity("llama.pages", ledger.held("llama.pages") + 8 * PAGE_BYTES)
    whole = ledger.capacity("llama.pages") // PAGE_BYTES

    async def decide(pages: int, timeout_s: float) -> float:
        lease = ledger.lease(leases.pop(dice.randrange(len(leases))))
        assert lease is not None
        ledger.settle(lease.id)
        leases.append(ledger.reserve("llama", lease.price, "boot", dice.uniform(1, 30)).id)
        asked = claim(pages)
        return min([await tried(asked, timeout_s) for _ in range(TRIES)])

    async def tried(asked: Claim, timeout_s: float) -> float:
        admitted = None
        began_ns = time.perf_counter_ns()
        with suppress(RequestError):
            admitted = await gate.admit(asked, timeout_s)
        took_us = (time.perf_counter_ns() - began_ns) / 1000
        if admitted is not None:
            ledger.settle(admitted.id)
        return took_us

    kinds = {"admit": (1, 1e6), "the whole account, now": (whole, 0.1), "never": (2 * whole, 1.0)}
    rows = [_row(kind, [await decide(*asked) for _ in range(DECISIONS)]) for kind, asked in kinds.items()]
    line = [asyncio.create_task(gate.admit(claim(whole), 1e6)) for _ in range(WAITERS)]
    await asyncio.sleep(0)
    kinds = {"behind the line": (20, 0.1), "the whole account, behind the line": (whole, 0.1)}
    rows += [_row(kind, [await decide(*asked) for _ in range(DECISIONS)]) for kind, asked in kinds.items()]
    for waiter in line:
        waiter.cancel()
    await asyncio.gather(*line, return_exceptions=True)
    return rows


def _row(kind: str, took_us: list[float]) -> dict[str, Any]:
    took_us.sort()
    at = {"p50_us": 0.5, "p99_us": 0.99, "most_us": 1.0}
    numbers = {name: took_us[min(len(took_us) - 1, int(share * len(took_us)))] for name, share in at.items()}
    return {"what": "decision", "kind": kind, "leases": LEASES, "decisions": len(took_us)} | numbers


def _merged(section: str, figures: Figures, rows: Rows) -> tuple[Figures, Rows]:
    """This section's figures and rows in place of its earlier ones."""
    path = Path(os.environ.get("OUT", record.RESULTS)) / "admission.json"
    told = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"figures": {}, "rows": []}
    others = [row for row in told["rows"] if row["section"] != section]
    return told["figures"] | figures, others + [{"section": section} | row for row in rows]


def _gate() -> tuple[Figures, Rows]:
    """What bench_gate measured, with the commit and machine it was measured on; nothing where it has not run."""
    path = record.RESULTS / "gate.json"
    if not path.exists():
        return {}, []
    told = json.loads(path.read_text(encoding="utf-8"))
    source = {key: told[key] for key in ("command", "commit", "date", "machine")}
    return told["figures"], [{"what": "gate", **source}, *told["rows"]]


if __name__ == "__main__":
    main()
