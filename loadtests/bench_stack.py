"""The whole stack, from HTTP to tokens, beside the bare engine in the same run on the same machine.

``python -m loadtests.bench_stack`` on a CUDA card writes ``results/h200_stack.json`` (Llama-3-8B's architecture, bf16,
random weights, the whole card); without one ``results/cpu_stack.json`` (the demo model, float32).
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import torch

from common import settings as settings_module
from common.settings import Settings, to_environ
from loadtests import engine_driver, record
from loadtests.bench_llama import opened
from loadtests.campaigns.process import Process, answers, free_ports
from loadtests.campaigns.random_models import folder_of

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
START_S = 300.0
TIMEOUT_S = 300.0
REPEATS = 3

Rows = list[dict[str, Any]]


def main() -> None:
    """Measures what this machine can run and writes its record."""
    figures: dict[str, float] = {}
    rows: Rows = []
    on_card = torch.cuda.is_available()
    counts = (64, 256) if on_card else (4, 8)
    with tempfile.TemporaryDirectory() as folder:
        environ = environment(Path(folder), on_card=on_card)
        settings = settings_module.load(environ)
        for count, rate in stack_rates(settings, environ, Path(folder), counts, rows).items():
            figures[f"stack_tokens_per_s_{count}"] = rate
        for count, rate in engine_rates(settings, counts, rows).items():
            figures[f"engine_tokens_per_s_{count}"] = rate
    for count in counts:
        ratio = figures[f"stack_tokens_per_s_{count}"] / figures[f"engine_tokens_per_s_{count}"]
        figures[f"stack_ratio_{count}"] = ratio
    figures["stack_ratio"] = figures[f"stack_ratio_{counts[-1]}"]
    machine = torch.cuda.get_device_name() if on_card else ""
    print(record.write("h200_stack" if on_card else "cpu_stack", figures, rows, machine))


def environment(folder: Path, *, on_card: bool) -> dict[str, str]:
    """This process's environment with the settings of both sides."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("VRAMGATE_")}
    ports = free_ports(4)
    told: dict[str, dict[str, object]] = {
        "server": {"port": ports[0], "request_timeout_s": TIMEOUT_S},
        "triton": dict(zip(("http_port", "grpc_port", "metrics_port"), ports[1:], strict=True)),
        "state": {"dir": folder / "state"},
        "log": {"level": "warning"},
    }
    if on_card:
        model = folder_of("llama-3-8b", folder / "model")
        told["llama"] = {"model": model, "dummy_weights": True, "grant": "64GiB", "max_batch": 256}
        told["llama"] |= {"step_tokens": 2048, "max_waiting": 1024}
    for section, values in told.items():
        for key, value in values.items():
            found |= to_environ(section, key, value)
    return found


def stack_rates(
    settings: Settings, environ: dict[str, str], folder: Path, counts: tuple[int, ...], rows: Rows
) -> dict[int, float]:
    """Requests at once -> tokens per second through the running service, the best of some rounds."""
    url = f"http://127.0.0.1:{settings.server.port}"
    command = (sys.executable, "-c", "from frontend.cli import main; main()", "up")
    with Process(command, environ, folder / "service.log") as service:
        service.wait_for(lambda: answers(url + "/readyz"), START_S)
        found = {}
        for count in counts:
            asyncio.run(together(url, settings, count, 8))
            rates = [asyncio.run(together(url, settings, count, OUTPUT_TOKENS)) for _ in range(REPEATS)]
            found[count] = max(rates)
            rows.append({"what": "stack", "requests": count, "tokens_per_s": rates})
            print(rows[-1], flush=True)
    return found


def engine_rates(settings: Settings, counts: tuple[int, ...], rows: Rows) -> dict[int, float]:
    """The same without anything in front of the engine."""
    found = {}
    with opened(settings, {}, "load_s") as engine:
        for count in counts:
            engine_driver.together(engine, count, PROMPT_TOKENS, 8)
            seconds = [engine_driver.together(engine, count, PROMPT_TOKENS, OUTPUT_TOKENS) for _ in range(REPEATS)]
            rates = [count * OUTPUT_TOKENS / elapsed_s for elapsed_s in seconds]
            found[count] = max(rates)
            rows.append({"what": "engine", "requests": count, "tokens_per_s": rates})
            print(rows[-1], flush=True)
    return found


async def together(url: str, settings: Settings, count: int, output_tokens: int) -> float:
    """Tokens per second of `count` streamed completions that are sent at once."""
    vocab = 128_000 if settings.llama.dummy_weights else 49_000
    prompts = [engine_driver.prompt(PROMPT_TOKENS, vocab, seed) for seed in range(count)]
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as client:
        started_s = time.monotonic()
        tokens = await asyncio.gather(*(_complete(client, prompt, output_tokens) for prompt in prompts))
        return sum(tokens) / (time.monotonic() - started_s)


async def _complete(client: aiohttp.ClientSession, prompt: tuple[int, ...], output_tokens: int) -> int:
    """Tokens of one answer; raises RuntimeError for one that is not whole."""
    body = {"model": "llama", "prompt": list(prompt), "max_tokens": output_tokens, "temperature": 0.0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    usage: dict[str, int] | None = None
    async with client.post("/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            if line.startswith(b"data: {"):
                usage = json.loads(line[6:]).get("usage") or usage
    if usage is None:
        raise RuntimeError("the stream ended without its usage")
    return usage["completion_tokens"]


if __name__ == "__main__":
    main()
