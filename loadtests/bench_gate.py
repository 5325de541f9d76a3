"""The gate as its clients meet it: kills, disconnects, refusals under a flood, and what the way through it costs.

``python -m loadtests.bench_gate [--kills 100] [--disconnects 500] [--seconds 20] [--rounds 10]`` does all of it with a
real tritonserver and writes ``results/gate.json``.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from loadtests import echo_clients, record, stack
from loadtests.gate_load import KINDS, Load
from loadtests.stack import Stack
from tests.integration.running import free_ports

LEDGER_S = 2.0
"""The ledger has to be idle so soon after the engines."""
OFFERED_PER_S = 300.0
STREAMS = 4
STREAM_TOKENS = 2**14 - 8
"""More than a stream can get in the time of the measurement; four of them hold all pages."""
CLIENTS = 32
PROXY_S = 5.0
"""For the bare proxy to start."""


@dataclass
class Result:
    """Figures by name, and the measurements behind them."""

    figures: dict[str, float] = field(default_factory=dict)
    rows: list[Mapping[str, Any]] = field(default_factory=list)

    def take(self, other: "Result") -> None:
        """Adds what another measurement gave."""
        self.figures |= other.figures
        self.rows += other.rows


async def kill9_leaked_bytes(folder: Path, kills: int = 100) -> Result:
    """The frontend is killed in the midst of load, again and again: bytes on the books once the engines are idle."""
    dice, working = random.Random(9), 0
    async with stack.tiny(folder).running() as service:
        load = Load(service.url, dice)
        async with load.running(clients=8):
            for _ in range(kills):
                await asyncio.sleep(dice.uniform(0.05, 0.6))
                await service.kill_frontend()
                working += sum(len(status.leases) for status in await service.working())
                await service.start_frontend()
        leaked_bytes = await _leaked_bytes(service)
    row = {"name": "kill9", "kills": kills, "leases_at_work": working, "ends": dict(load.ends), "leaked": leaked_bytes}
    return Result({"kill9_leaked_bytes": leaked_bytes}, [row])


async def disconnect_leaked_bytes(folder: Path, disconnects: int = 500) -> Result:
    """Clients of every kind leave at random until so many have: bytes on the books once the engines are idle."""
    dice = random.Random(5)
    async with stack.tiny(folder).running() as service:
        load = Load(service.url, dice)

        async def leave() -> None:
            while await load.visit(dice.choice(KINDS)) is not None:
                pass

        crowd = asyncio.Semaphore(24)

        async def one() -> None:
            async with crowd:
                await leave()

        await asyncio.gather(*(one() for _ in range(disconnects)))
        leaked_bytes = await _leaked_bytes(service)
    row = {"name": "disconnects", "disconnects": disconnects, "ends": dict(load.ends), "leaked": leaked_bytes}
    return Result({"disconnect_leaked_bytes": leaked_bytes}, [row])


async def refusals(folder: Path, seconds: float = 20.0) -> Result:
    """Refusals to a flood from another process, while the streams that hold all pages go on."""
    async with stack.tiny(folder, admission__max_waiting="0", server__request_timeout_s="600").running() as service:
        times_s: list[float] = []
        async with aiohttp.ClientSession() as web:
            streams = [asyncio.create_task(_stream(web, service.url, times_s)) for _ in range(STREAMS)]
            try:
                while len(times_s) < 20 * STREAMS:  # noqa: ASYNC110 - the engine is another process
                    await asyncio.sleep(0.05)
                before = await _rate_per_s(times_s, seconds / 4)
                offered = asyncio.create_task(_offer(service.url, seconds))
                during = await _rate_per_s(times_s, seconds)
                told = await offered
                after = await _rate_per_s(times_s, seconds / 4)
                ended = [stream for stream in streams if stream.done()]
            finally:
                for stream in streams:
                    stream.cancel()
                await asyncio.gather(*streams, return_exceptions=True)
    if ended:
        raise AssertionError(f"{len(ended)} streams ended early: give them more tokens")
    refused_s = [latency_s for latency_s, status in told if status == 429]
    p95_ms, p99_ms = np.percentile(refused_s, [95, 99]) * 1e3
    kept = during / statistics.mean((before, after))
    row = {
        "name": "refusals",
        "offered_per_s": OFFERED_PER_S,
        "seconds": seconds,
        "statuses": {str(status): [one for _, one in told].count(status) for status in {one for _, one in told}},
        "tokens_per_s": {"before": before, "during": during, "after": after},
    }
    figures = {"refusal_p95_ms": p95_ms, "refusal_p99_ms": p99_ms, "stream_rate_kept": kept}
    return Result({name: float(value) for name, value in figures.items()}, [row])


async def overhead(folder: Path, rounds: int = 10, requests: int = 300, seconds: float = 3.0) -> Result:
    """An inference that costs nothing: straight to the model server, through the frontend, through a bare proxy."""
    ways: dict[str, dict[str, list[float]]] = {}
    async with stack.echo(folder).running() as service, _bare_proxy(service.triton_url) as proxy_url:
        urls = {"direct": service.triton_url, "frontend": service.url, "bare proxy": proxy_url}
        for url in urls.values():
            await echo_clients.latencies_s(url, requests)
        for _ in range(rounds):
            for name, url in urls.items():
                way = ways.setdefault(name, {"latencies_s": [], "per_s": []})
                way["latencies_s"] += await echo_clients.latencies_s(url, requests)
                way["per_s"].append(float(await _output("loadtests.echo_clients", url, str(CLIENTS), str(seconds))))
    p50_ms = {name: 1e3 * statistics.median(way["latencies_s"]) for name, way in ways.items()}
    per_s = {name: statistics.median(way["per_s"]) for name, way in ways.items()}
    figures = {
        "overhead_p50_ms_1": p50_ms["frontend"] - p50_ms["direct"],
        "throughput_ratio_32": per_s["frontend"] / per_s["direct"],
        "bare_proxy_overhead_p50_ms_1": p50_ms["bare proxy"] - p50_ms["direct"],
        "bare_proxy_throughput_ratio_32": per_s["bare proxy"] / per_s["direct"],
    }
    rows: list[Mapping[str, Any]] = [
        {"name": f"overhead {name}", "p50_ms": p50_ms[name], "per_s": way["per_s"]} for name, way in ways.items()
    ]
    return Result(figures, rows)


async def _leaked_bytes(service: Stack) -> int:
    """Waits for the engines' last lease to end, then for the ledger, but not for long."""
    await service.engines_at_rest()
    latest_s = time.monotonic() + LEDGER_S
    while (held_bytes := await service.held_bytes()) and time.monotonic() < latest_s:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return held_bytes


async def _stream(web: aiohttp.ClientSession, url: str, times_s: list[float]) -> None:
    """Notes when each event of a stream came."""
    body = {"model": "llama", "prompt": [5] * 8, "max_tokens": STREAM_TOKENS, "temperature": 1, "stream": True}
    async with web.post(f"{url}/v1/completions", json=body, headers={"X-Request-Timeout": "600"}) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            times_s += [time.perf_counter()] * line.startswith(b"data:")


async def _rate_per_s(times_s: list[float], seconds: float) -> float:
    """Events a second in the seconds that follow."""
    count, begun_s = len(times_s), time.perf_counter()
    await asyncio.sleep(seconds)
    return (len(times_s) - count) / (time.perf_counter() - begun_s)


async def _offer(url: str, seconds: float) -> list[tuple[float, int]]:
    body = json.dumps({"model": "llama", "prompt": [5] * 8, "max_tokens": 64})
    told = await _output("loadtests.offer", f"{url}/v1/completions", str(OFFERED_PER_S), str(seconds), body)
    return [(float(latency_s), int(status)) for latency_s, status in json.loads(told)]


async def _output(module: str, *arguments: str) -> str:
    """What the module prints, run as a process of its own."""
    command = (sys.executable, "-m", module, *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return output.decode()


@asynccontextmanager
async def _bare_proxy(upstream: str) -> AsyncIterator[str]:
    (port,) = free_ports(1)
    command = (sys.executable, "-m", "loadtests.baselines.bare_proxy", upstream, str(port))
    process = await asyncio.create_subprocess_exec(*command)
    try:
        await asyncio.sleep(PROXY_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.wait()


async def measure(kills: int, disconnects: int, seconds: float, rounds: int) -> Result:
    """All of it, each part with a service of its own; a count of 0 leaves the part out."""
    result = Result()
    with tempfile.TemporaryDirectory(prefix="vramgate-gate-") as scratch:
        folder = Path(scratch)
        if rounds:
            result.take(await overhead(folder / "overhead", rounds))
        if seconds:
            result.take(await refusals(folder / "refusals", seconds))
        if disconnects:
            result.take(await disconnect_leaked_bytes(folder / "disconnects", disconnects))
        if kills:
            result.take(await kill9_leaked_bytes(folder / "kills", kills))
    return result


def main() -> None:
    """Measures, writes the record and prints the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--disconnects", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=10)
    result = asyncio.run(measure(**vars(parser.parse_args())))
    print(json.dumps(result.figures, indent=1))
    print(record.write("gate", result.figures, result.rows))


if __name__ == "__main__":
    main()
