"""The Llama engine beside ``generate`` and transformers' continuous batching, all in one run.

``python -m loadtests.bench_llama`` on a CUDA card writes ``results/llama_h200.json`` (Llama-3-8B's architecture, bf16,
random weights); without one ``results/llama_cpu.json`` (the demo model, float32).
"""

import gc
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ByteSize

from backend import allocator
from backend.llama import engine as llama_engine
from backend.llama.engine import LlamaEngine
from backend.llama.runner import Runner
from backend.llama.scheduler import Sequence, Slice
from common import model_folder
from common.sections import Llama
from common.settings import Settings
from loadtests import agreement, card_limits, dummy_model, engine_driver, peers, record

DECODE_LENGTH = 512
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
DRIFT_REQUESTS, LEAK_REQUESTS, LEAK_CANCELS = 1000, 1000, 300
CPU_PROMPT, CPU_OUTPUT = 32, 48

Figures = dict[str, float]
Rows = list[dict[str, Any]]


def main() -> None:
    """Runs what this machine can run and writes its record."""
    figures: Figures = {}
    rows: Rows = []
    if torch.cuda.is_available():
        bench_card(figures, rows)
        path = record.write("llama_h200", figures, rows, torch.cuda.get_device_name())
    else:
        bench_cpu(figures, rows)
        path = record.write("llama_cpu", figures, rows)
    print(path)


def bench_card(figures: Figures, rows: Rows) -> None:
    """All figures of the card; our engine first, the library's ways after it has left the card."""
    figures["copy_bytes_per_s"] = card_limits.copy_bytes_per_s(torch.device("cuda"))
    figures["matrix_flops_per_s"] = card_limits.matrix_flops_per_s(torch.device("cuda"), torch.bfloat16)
    torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        dummy_model.write(Path(folder), dummy_model.LLAMA_3_8B)
        llama = Llama(
            model=folder,
            dummy_weights=True,
            grant=ByteSize(64 * 2**30),
            max_batch=256,
            step_tokens=2048,
            max_waiting=1024,
        )
        for figure in ("load_s_cold", "load_s_warm"):
            engine_figures(Settings(llama=llama), figure, figures, rows)
        vacate()
        torch.cuda.set_per_process_memory_fraction(1.0)
        peer_figures(Path(folder), figures, rows)


def engine_figures(settings: Settings, load_figure: str, figures: Figures, rows: Rows) -> None:
    """Loads the engine and measures it; the first load finds no compiled kernels and is only timed."""
    with opened(settings, figures, load_figure) as engine:
        if load_figure == "load_s_cold":
            return
        # In front: the decode steps below run on this thread, which then has a workspace of its own.
        figures["allocator_peak_drift_bytes"] = peak_drift_bytes(engine, rows)
        figures["pages_leaked"] = pages_leaked(engine)
        figures["ttft_ms_1024"] = 1e3 * statistics.median(engine_driver.first_token_s(engine, 1024) for _ in range(5))
        job_figures(engine, figures, rows)
        decode_figures(engine, figures, rows)


def decode_figures(engine: LlamaEngine, figures: Figures, rows: Rows) -> None:
    """A decode step against the bytes it must read at the bandwidth of a large copy."""
    runner = engine._runner
    bandwidth = figures["copy_bytes_per_s"]
    kv_token_bytes = engine.limits.page_bytes // engine.limits.page_tokens
    for batch in (1, 8, 64, 256):
        step = _decode_step(runner, batch)
        step_s = card_limits.seconds(partial(_decode, runner, step), 50)
        least_s = card_limits.step_bytes(runner.model, kv_token_bytes, batch, DECODE_LENGTH) / bandwidth
        figures[f"decode_roofline_fraction_b{batch}"] = least_s / step_s
        rows.append({"what": "decode step", "batch": batch, "length": DECODE_LENGTH, "s": step_s, "least_s": least_s})
        print(rows[-1], flush=True)


def job_figures(engine: LlamaEngine, figures: Figures, rows: Rows) -> None:
    """Many requests at once against the time the card needs at the least."""
    runner = engine._runner
    flops = figures["matrix_flops_per_s"]
    kv_token_bytes = engine.limits.page_bytes // engine.limits.page_tokens
    for count in (64, 256):
        engine_driver.together(engine, count, PROMPT_TOKENS, 8)
        elapsed_s = min(engine_driver.together(engine, count, PROMPT_TOKENS, OUTPUT_TOKENS) for _ in range(3))
        least_s = count * card_limits.prefill_flops(runner.model.shape, PROMPT_TOKENS) / flops
        least_s += sum(
            card_limits.step_bytes(runner.model, kv_token_bytes, count, length) / figures["copy_bytes_per_s"]
            for length in range(PROMPT_TOKENS + 1, PROMPT_TOKENS + OUTPUT_TOKENS)
        )
        figures[f"engine_limit_fraction_{count}"] = least_s / elapsed_s
        figures[f"engine_tokens_per_s_{count}"] = count * OUTPUT_TOKENS / elapsed_s
        rows.append({"what": "at once", "requests": count, "s": elapsed_s, "least_s": least_s})
        print(rows[-1], flush=True)


def pages_leaked(engine: LlamaEngine) -> int:
    """Pages still held after many requests, some of them cancelled at random moments."""
    choices = random.Random(1)
    cancelled = set(choices.sample(range(LEAK_REQUESTS), LEAK_CANCELS))
    runs = []
    for number in range(LEAK_REQUESTS):
        run = engine_driver.Run()
        prompt = engine_driver.prompt(choices.randint(8, 600), engine.limits.vocab_tokens, number)
        work_id = engine_driver.start(engine, prompt, choices.randint(1, 24), run)
        runs.append(run)
        if number in cancelled:
            time.sleep(choices.random() * 0.01)
            engine.cancel(work_id)
        if number >= 200:
            runs[number - 200].ended.wait(engine_driver.WAIT_S)
    for run in runs:
        run.ended.wait(engine_driver.WAIT_S)
    engine.check()
    return engine.footprint().used_bytes // engine.limits.page_bytes


def peak_drift_bytes(engine: LlamaEngine, rows: Rows) -> int:
    """How far the allocator's peak moves beyond what it was after the warm-up, over requests of 8 to 8,000 tokens."""
    device = engine._runner.device
    warm_bytes = engine.warm_peak_bytes
    highest_bytes, choices, tokens = 0, random.Random(2), 0
    for batch in range(DRIFT_REQUESTS // 50):
        runs = []
        for number in range(50):
            run = engine_driver.Run()
            length = int(8 * 1000 ** choices.random())
            tokens += length
            ids = engine_driver.prompt(length, engine.limits.vocab_tokens, 50 * batch + number)
            engine_driver.start(engine, ids, choices.randint(1, 16), run)
            runs.append(run)
        for run in runs:
            run.wait()
        highest_bytes = max(highest_bytes, allocator.peak_bytes(device))
    rows.append(
        {"what": "drift", "prompt_tokens": tokens, "warm_peak_bytes": warm_bytes, "highest_bytes": highest_bytes}
    )
    return highest_bytes - warm_bytes


def peer_figures(folder: Path, figures: Figures, rows: Rows) -> None:
    """The same architecture through transformers, on the same card in the same run."""
    device = torch.device("cuda")
    model = peers.open_model(folder, device, torch.bfloat16, dummy_weights=True)
    prompts = [engine_driver.prompt(PROMPT_TOKENS, model.config.vocab_size, seed) for seed in range(64)]
    for count in (1, 64):
        peers.generate_s(model, prompts[:count], 4)
        elapsed_s = peers.generate_s(model, prompts[:count], OUTPUT_TOKENS)
        figures[f"generate_tokens_per_s_{count}"] = count * OUTPUT_TOKENS / elapsed_s
    best = 0.0
    try:
        for options, elapsed_s in peers.continuous_batching_s(model, prompts, OUTPUT_TOKENS):
            rate = len(prompts) * OUTPUT_TOKENS / elapsed_s
            rows.append({"what": "transformers continuous batching", **options, "tokens_per_s": rate})
            print(rows[-1], flush=True)
            best = max(best, rate)
    except Exception as error:
        rows.append({"what": "transformers continuous batching", "failed": f"{type(error).__name__}: {error}"[:300]})
        print(rows[-1], flush=True)
    if best:
        figures["transformers_cb_tokens_per_s_64"] = best
        figures["ratio_to_transformers_cb_64"] = figures["engine_tokens_per_s_64"] / best
    figures |= agreement.figures(model)


def bench_cpu(figures: Figures, rows: Rows) -> None:
    """The demo model: one stream, and eight, against ``generate`` one after the other; the two take turns."""
    settings = Settings()
    folder = model_folder.resolve(settings)
    model = peers.open_model(folder, torch.device("cpu"), torch.float32, dummy_weights=False)
    model.generation_config.eos_token_id = None
    prompts = [engine_driver.prompt(CPU_PROMPT, model.config.vocab_size, seed) for seed in range(8)]
    with opened(settings, figures, "load_s") as engine:
        for count in (1, 8):
            ratios = []
            for _ in range(3):
                ours_s = engine_driver.together(engine, count, CPU_PROMPT, CPU_OUTPUT)
                theirs_s = sum(peers.generate_s(model, [ids], CPU_OUTPUT) for ids in prompts[:count])
                ratios.append(theirs_s / ours_s)
                rows.append({"streams": count, "engine_s": ours_s, "generate_s": theirs_s})
                print(rows[-1], flush=True)
            figures[f"cpu_ratio_{count}"] = statistics.median(ratios)


@contextmanager
def opened(settings: Settings, figures: Figures, figure: str) -> Iterator[LlamaEngine]:
    """A loaded engine, as a service has it; its loading time goes under `figure`."""
    vacate()
    started_s = time.monotonic()
    engine = llama_engine.load(settings)
    gc.freeze()
    figures[figure] = time.monotonic() - started_s
    print(figure, figures[figure], flush=True)
    try:
        yield engine
    finally:
        engine.close()


def vacate() -> None:
    """Takes engines that were closed off the device."""
    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _decode(runner: Runner, step: list[Slice]) -> list[int]:
    """The step as the engine takes it, greedy: tokens in, tokens out."""
    tokens: list[int] = runner.forward(step).argmax(-1).tolist()
    return tokens


def _decode_step(runner: Runner, batch: int) -> list[Slice]:
    """One decode of `batch` sequences at DECODE_LENGTH, each in pages of its own."""
    size = runner.pool.page_tokens
    each = -(-DECODE_LENGTH // size)
    step = []
    for number in range(batch):
        pages = list(range(number * each, (number + 1) * each))
        sequence = Sequence([0] * DECODE_LENGTH, max_tokens=1, pages=pages, computed=DECODE_LENGTH - 1)
        step.append(Slice.next_of(sequence, 1))
    return step


if __name__ == "__main__":
    main()
