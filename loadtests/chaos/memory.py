"""Faults of memory under the running service: a neighbour that takes the card, and ten times the load it can bear."""

import asyncio
import csv
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from loadtests.chaos.load import Load
from loadtests.chaos.processes import OTHER, summary
from loadtests.chaos.service import Service

ROOT = Path(__file__).resolve().parents[2]
TRACES = [folder / "shared/traces/azure_llm_2023_conv.csv" for folder in (ROOT, ROOT.parent)]
"""Where the trace of conversations is looked for: arrival_s, prompt_tokens, output_tokens."""
NEIGHBOUR_S = 10.0
BACK_S = 60.0
OUTPUT_SHARE = 16
"""Prompts are cut at so many times what answers are cut at."""
LOOK_S = 0.5
VOCAB = 30_000

Row = dict[str, Any]


def neighbour(service: Service) -> Row:
    """Another process takes all free memory for ten seconds, both models busy, and gives it back."""
    load = Load(service.url)
    boots = {model: service.control(model, "status")["boot_id"] for model in OTHER}
    times: dict[str, float] = {}

    async def run() -> None:
        async with load.running():
            command = [sys.executable, "-m", "loadtests.chaos.neighbour", str(NEIGHBOUR_S)]
            stranger = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            assert stranger.stdout is not None
            times["taken"] = float((await stranger.stdout.readline()).split()[1])
            times["closed"] = await _when(service, ready=False, limit_s=NEIGHBOUR_S)
            times["back"] = float((await stranger.stdout.readline()).split()[2])
            times["open"] = await _when(service, ready=True, limit_s=BACK_S)
            await stranger.wait()
            await asyncio.gather(*(load.until_good(model, times["back"], BACK_S) for model in OTHER))

    asyncio.run(run())
    restarted = [model for model in OTHER if service.control(model, "status")["boot_id"] != boots[model]]
    return summary(service, load, times["taken"], None) | {
        "crashes": len(restarted),
        "closed_after_s": times["closed"] - times["taken"],
        "open_after_s": times["open"] - times["back"],
        "first_good_s": max(load.first_good_s(model, times["back"]) for model in OTHER),
    }


@dataclass
class Flood:
    """Requests at the times of a trace; none of them waits for another."""

    url: str
    deadline_s: float = 30.0
    statuses: Counter[int] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    late: int = 0
    uses: list[float] = field(default_factory=list)
    """Share of the page account in use, looked at twice a second while requests come."""
    tokens: int = 0

    async def run(self, arrivals: list[tuple[float, int, int]], service: Service) -> float:
        """Seconds that it took to send them all."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self.url, connector=connector) as web, asyncio.TaskGroup() as group:
            began_s = time.monotonic()
            watch = group.create_task(self._watch(service))
            for number, (arrival_s, prompt_tokens, output_tokens) in enumerate(arrivals):
                await asyncio.sleep(max(0.0, began_s + arrival_s - time.monotonic()))
                group.create_task(self._one(web, number, prompt_tokens, output_tokens))
            watch.cancel()
            return time.monotonic() - began_s

    async def _one(self, web: aiohttp.ClientSession, number: int, prompt_tokens: int, output_tokens: int) -> None:
        prompt = random.Random(number).choices(range(VOCAB), k=prompt_tokens)
        body = {"model": "llama", "prompt": prompt, "max_tokens": output_tokens, "temperature": 0}
        began_s = time.monotonic()
        try:
            headers = {"X-Request-Timeout": f"{self.deadline_s:g}"}
            async with asyncio.timeout(self.deadline_s + 10):
                async with web.post("/v1/completions", json=body, headers=headers) as answer:
                    told = await answer.json()
                    self.statuses[answer.status] += 1
        except (aiohttp.ClientError, TimeoutError, OSError):
            self.statuses[0] += 1
            return
        self.late += time.monotonic() - began_s > self.deadline_s + 1
        if answer.status == 200:
            self.tokens += told["usage"]["completion_tokens"]
        else:
            self.codes[told["error"]["code"]] += 1

    async def _watch(self, service: Service) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            accounts = (await asyncio.to_thread(service.get, "/v1/ledger"))["accounts"]
            pages = next(account for account in accounts if account["name"] == "llama.pages")
            self.uses.append(pages["held_bytes"] / max(1, pages["capacity_bytes"]))


def overload(service: Service, requests: int, seconds: float, most_tokens: int) -> Row:
    """The trace's first `requests` squeezed into `seconds`, prompts cut at `most_tokens`, answers at a 16th of it."""
    arrivals = _trace(requests, seconds, most_tokens)
    flood, failed = Flood(service.url), service.count('vramgate_oom_total{model="llama",rung="failed"}')
    boot_id = service.control("llama", "status")["boot_id"]
    took_s = asyncio.run(flood.run(arrivals, service))
    return {
        "offered": len(arrivals),
        "sent_in_s": took_s,
        "completed": flood.statuses[200],
        "refused": flood.statuses[429],
        "oom_failed": flood.statuses[500] + service.count('vramgate_oom_total{model="llama",rung="failed"}') - failed,
        "other_failures": flood.statuses.total() - sum(flood.statuses[status] for status in (200, 429, 500)),
        "late": flood.late,
        "overload": len(arrivals) / max(1, flood.statuses[200]),
        "account_use": sum(flood.uses) / max(1, len(flood.uses)),
        "output_tokens": flood.tokens,
        "crashes": int(service.control("llama", "status")["boot_id"] != boot_id),
        "statuses": {str(status): count for status, count in sorted(flood.statuses.items())},
        "codes": dict(flood.codes),
    }


def _trace(requests: int, seconds: float, most_tokens: int) -> list[tuple[float, int, int]]:
    """When each request comes, and its tokens in and out; the trace's own arrivals on a faster clock."""
    path = next((path for path in TRACES if path.is_file()), None)
    if path is None:
        raise SystemExit(f"the trace is neither at {TRACES[0]} nor at {TRACES[1]}")
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:requests]
    span_s = float(rows[-1]["arrival_s"]) or 1.0
    return [
        (
            float(row["arrival_s"]) * seconds / span_s,
            min(most_tokens, int(row["prompt_tokens"])),
            max(1, min(most_tokens // OUTPUT_SHARE, int(row["output_tokens"]))),
        )
        for row in rows
    ]


async def _when(service: Service, *, ready: bool, limit_s: float) -> float:
    """The time at which the service was (not) ready; the end of the wait where it never was."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < limit_s:
        if await asyncio.to_thread(service.is_ready) is ready:
            break
        await asyncio.sleep(0.05)
    return time.monotonic()
