"""Plain models, run as most people run them, with the allocator's peak written down: what a law of theirs is judged by.

A run starts from a cold pool (everything cached is given back before it), so its peak depends on its shape alone.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from backend.unet.network import UNet
from estimator.llama import LlamaShape


@dataclass(frozen=True)
class Peak:
    """The most that one run added, in bytes."""

    allocated_bytes: int
    reserved_bytes: int


def measure(run: Callable[[], object], device: torch.device) -> Peak:
    """The peak of `run` over what stood before, from a cold pool; CUDA only."""
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    allocated_bytes, reserved_bytes = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return Peak(
        torch.cuda.max_memory_allocated(device) - allocated_bytes,
        torch.cuda.max_memory_reserved(device) - reserved_bytes,
    )


class PlainLlama:
    """A transformers model of random weights, and its ``generate``."""

    def __init__(self, shape: LlamaShape, dtype: torch.dtype, device: torch.device) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=shape.hidden,
            intermediate_size=shape.ffn,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            vocab_size=shape.vocab,
            max_position_embeddings=shape.context_tokens,
            tie_word_embeddings=shape.tied_embeddings,
            attn_implementation="sdpa",
            pad_token_id=0,
            eos_token_id=None,
        )
        standard = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with device:
                self._model: Any = LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(standard)
        self._device = device
        self._vocab = shape.vocab

    @torch.inference_mode()
    def generate(self, batch: int, prompt_tokens: int, new_tokens: int, padded: bool, sampled: bool = False) -> None:
        """One call; with `padded` every other prompt is half as long and filled up on the left."""
        ids = torch.randint(1, self._vocab, (batch, prompt_tokens))
        mask = torch.ones_like(ids)
        if padded:
            ids[::2, : (prompt_tokens + 1) // 2] = 0
            mask[::2, : (prompt_tokens + 1) // 2] = 0
        options: dict[str, Any] = {"top_k": 50, "top_p": 0.95, "temperature": 0.8} if sampled else {}
        out = self._model.generate(
            ids.to(self._device),
            attention_mask=mask.to(self._device),
            max_new_tokens=new_tokens,
            do_sample=sampled,
            **options,
        )
        if out.shape != (batch, prompt_tokens + new_tokens):
            raise RuntimeError(f"generate gave {tuple(out.shape)}")


class PlainUnet:
    """The segmentation network as it is trained, batch normalisation and all, and its forward pass."""

    def __init__(self, width: int, classes: int, dtype: torch.dtype, device: torch.device) -> None:
        self._network = UNet(width, classes).eval().to(device=device, dtype=dtype)
        self._dtype = dtype
        self._device = device

    @torch.inference_mode()
    def forward(self, batch: int, height: int, width: int) -> None:
        """One batch of images that come from the host; the logits stay."""
        images = torch.rand(batch, 3, height, width, dtype=self._dtype)
        logits = self._network(images.to(self._device))
        if logits.shape[-2:] != (height, width):
            raise RuntimeError(f"the network gave {tuple(logits.shape)}")
