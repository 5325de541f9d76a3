"""What the card can do at best, measured in the run that is judged by it."""

import time
from collections.abc import Callable

import torch

from backend.llama.model import Llama
from estimator.llama import LlamaShape

_COPY_BYTES = 2 * 2**30
_MATRIX = 8192


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Mean seconds of `work` on the device, after a warm-up."""
    work()
    torch.cuda.synchronize()
    started_s = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started_s) / repeats


def copy_bytes_per_s(device: torch.device) -> float:
    """Bandwidth of a large copy, bytes read + bytes written."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * _COPY_BYTES / seconds(lambda: target.copy_(source), 20)


def matrix_flops_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """Rate of a large square matrix product."""
    a, b = (torch.randn(_MATRIX, _MATRIX, device=device, dtype=dtype) for _ in range(2))
    return 2 * _MATRIX**3 / seconds(lambda: a @ b, 20)


def step_bytes(model: Llama, kv_token_bytes: int, batch: int, length: int) -> int:
    """What a decode step must read: all weights but the embedding table, and the cached tokens of the batch."""
    weights = [tensor for layer in model.layers for tensor in _tensors(layer)]
    weights_bytes = sum(tensor.nbytes for tensor in weights) + model.norm.nbytes + model.head.nbytes
    return weights_bytes + batch * length * kv_token_bytes


def prefill_flops(shape: LlamaShape, prompt_tokens: int) -> float:
    """Operations of one prompt: two for each weight of the layers and token, and the attention's two products."""
    matrices = shape.hidden * (shape.qkv_width + shape.q_width + 3 * shape.ffn)
    attention = 2 * shape.q_width * prompt_tokens
    return shape.layers * prompt_tokens * (2.0 * matrices + attention) + 2.0 * shape.hidden * shape.vocab


def _tensors(layer: object) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in vars(layer).values():
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif hasattr(value, "weight"):
            found.append(value.weight)
    return found
