"""The same model through what most people run: transformers' ``generate`` and its continuous batching."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch


def open_model(folder: Path, device: torch.device, dtype: torch.dtype, *, dummy_weights: bool) -> Any:
    """The transformers model of `folder`; with `dummy_weights` the config's architecture and random values."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if not dummy_weights:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
    config = AutoConfig.from_pretrained(folder)
    torch.set_default_dtype(dtype)
    try:
        with device:
            return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    finally:
        torch.set_default_dtype(torch.float32)


@torch.inference_mode()
def generate_s(model: Any, prompts: Sequence[Sequence[int]], max_tokens: int) -> float:
    """Seconds of one static batch of equally long prompts through ``generate``, greedy."""
    ids = torch.tensor([list(ids) for ids in prompts], device=model.device)
    started_s = time.monotonic()
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        min_new_tokens=max_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    if out.shape[1] != ids.shape[1] + max_tokens:
        raise RuntimeError("generate stopped early")
    return time.monotonic() - started_s


def continuous_batching_s(
    model: Any, prompts: Sequence[Sequence[int]], max_tokens: int
) -> Iterator[tuple[dict[str, Any], float]]:
    """(settings, seconds) of the library's continuous batching, for each of its settings that runs here."""
    from transformers import GenerationConfig
    from transformers.generation import ContinuousBatchingConfig

    generation = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    inputs = [list(ids) for ids in prompts]
    for options in ({"use_cuda_graph": True, "use_async_batching": True}, {"use_cuda_graph": True}, {}):
        batching = ContinuousBatchingConfig(max_memory_percent=0.5, **options)

        def run(config: Any = batching) -> Any:
            return model.generate_batch(
                inputs, generation_config=generation, continuous_batching_config=config, progress_bar=False
            )

        run()
        started_s = time.monotonic()
        outputs = run()
        elapsed_s = time.monotonic() - started_s
        tokens = sum(len(output.generated_tokens) for output in outputs.values())
        if tokens != len(inputs) * max_tokens:
            raise RuntimeError(f"continuous batching gave {tokens} tokens instead of {len(inputs) * max_tokens}")
        yield options, elapsed_s
