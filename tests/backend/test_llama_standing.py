"""The priced working memory of a step against what torch really allocates in the largest legal ones."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from backend.llama.model import Linear
from backend.llama.request import Sampling
from backend.llama.runner import Runner
from backend.llama.sampling import Draw, choose
from backend.llama.scheduler import Sequence, Slice
from estimator.llama import pages_for, standing
from tests.backend.llama_kit import runner_of, save_model, settings_of, small_config

SHAPES: dict[str, dict[str, Any]] = {
    "wide feed-forward": {"intermediate_size": 2048, "vocab_size": 11, "max_position_embeddings": 64},
    "wide attention": {"hidden_size": 24, "intermediate_size": 24, "head_dim": 40, "num_key_value_heads": 6},
    "long context": {"max_position_embeddings": 2048},
    "large vocabulary": {"vocab_size": 9001, "hidden_size": 24, "max_position_embeddings": 64},
}
STEP_TOKENS, MAX_BATCH, PAGE_TOKENS = 64, 12, 16


def peak_bytes(work: Callable[[], object]) -> int:
    """Bytes that torch held at once while `work` ran, over what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    assert peak > 0
    return int(peak)


def slice_of(runner: Runner, tokens: int, count: int) -> Slice:
    """The last `count` of so many tokens, in pages of its own choosing."""
    pages = list(range(pages_for(tokens, PAGE_TOKENS)))
    return Slice.next_of(Sequence([1] * tokens, 1, pages=pages, computed=tokens - count), count)


def run_step(runner: Runner, step: list[Slice], sampling: Sampling) -> None:
    with torch.inference_mode():
        choose(runner.forward(step), [Draw(sampling, (1,), random.Random(0)) for _ in step]).read()


def largest(runner: Runner) -> list[Linear]:
    """The matrices of a layer, and the head."""
    layer = runner.model.layers[0]
    return [layer.qkv, layer.out, layer.gate_up, layer.down, Linear(runner.model.head)]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_legal_step_allocates_more_than_is_priced(tmp_path: Path, name: str, dtype: str) -> None:
    torch.set_num_threads(1)
    config = small_config(**SHAPES[name])
    save_model(tmp_path, config)
    context = config.max_position_embeddings
    pages = MAX_BATCH * pages_for(context, PAGE_TOKENS)
    sizes = {"page_tokens": PAGE_TOKENS, "pages": pages, "step_tokens": STEP_TOKENS, "max_batch": MAX_BATCH}
    runner = runner_of(settings_of(tmp_path, dtype=dtype, **sizes))
    lines = standing(runner.model.shape, dtype, PAGE_TOKENS, pages, STEP_TOKENS, MAX_BATCH).lines
    priced_bytes = sum(
        line.bytes for line in lines if line.why.partition(":")[0] not in ("weights", "pages", "padding")
    )
    chunk = slice_of(runner, context, min(STEP_TOKENS, context))
    long_decode, short_decode = slice_of(runner, context, 1), slice_of(runner, 3, 1)
    steps = [
        [chunk],
        [long_decode] * MAX_BATCH,
        [long_decode, *[short_decode] * (MAX_BATCH - 1)],
        [*[long_decode] * (MAX_BATCH - 1), slice_of(runner, context, min(STEP_TOKENS - MAX_BATCH + 1, context))],
    ]
    samplings = (Sampling(0.0), Sampling(10.0, 0.999, repetition_penalty=1.1, logprobs=2), Sampling(1.0, top_k=5))
    measured = [
        peak_bytes(lambda step=step, sampling=sampling: run_step(runner, step, sampling))  # type: ignore[misc]
        for step in steps
        for sampling in samplings
    ]
    # In half precision the CPU's matrix library packs a matrix before it multiplies, which no GPU library does.
    packed_bytes = max(linear.weight.nbytes for linear in largest(runner)) if dtype == "bfloat16" else 0
    assert max(measured) <= priced_bytes + packed_bytes
    assert priced_bytes < 4 * max(measured)
