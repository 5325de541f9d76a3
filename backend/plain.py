"""Plain models, run as most people run them, with the allocator's peak written down: what a law of theirs is judged by.

A run starts from a cold pool (everything cached is given back before it), so its peak depends on its shape alone.
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from backend.unet.network import UNet
from estimator.llama import LlamaShape
from estimator.plain import Call
from estimator.plain_unet import Images
from estimator.rounding import Footprint
from estimator.unet import UnetShape


@dataclass(frozen=True)
class Measured:
    """What one run added at its peak."""

    allocated_bytes: int
    mapped: Footprint
    """Reserved anew, by pool."""
    free: Footprint
    """Reserved and unused before the run, by pool."""

    @property
    def reserved_bytes(self) -> int:
        """Everything reserved anew."""
        return self.mapped.total_bytes


def measure(run: Callable[[], object], device: torch.device) -> Measured:
    """The peak of `run` over what stood before, from a cold pool; CUDA only."""
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    after = torch.cuda.memory_stats(device)
    return Measured(
        after["allocated_bytes.all.peak"] - before["allocated_bytes.all.current"],
        Footprint(*(after[f"{pool}.peak"] - before[f"{pool}.current"] for pool in _RESERVED)),
        free_in(before),
    )


def free_in(stats: Mapping[str, int]) -> Footprint:
    """Reserved and unused, by pool, in torch's ``memory_stats``."""
    allocated = ("allocated_bytes.small_pool", "allocated_bytes.large_pool")
    pairs = zip(_RESERVED, allocated, strict=True)
    return Footprint(*(stats[f"{reserved}.current"] - stats[f"{live}.current"] for reserved, live in pairs))


_RESERVED = ("reserved_bytes.small_pool", "reserved_bytes.large_pool")


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
    def generate(self, call: Call) -> None:
        """One call; where it is padded every other prompt is half as long and filled up on the left."""
        ids = torch.randint(1, self._vocab, (call.batch, call.prompt_tokens))
        mask = torch.ones_like(ids)
        if call.padded:
            mask[::2, : (call.prompt_tokens + 1) // 2] = 0
        options: dict[str, Any] = {"top_k": 50, "top_p": 0.95, "temperature": 0.8} if call.sampled else {}
        out = self._model.generate(
            (ids * mask).to(self._device),
            attention_mask=mask.to(self._device),
            max_new_tokens=call.new_tokens,
            do_sample=call.sampled,
            **options,
        )
        if out.shape != (call.batch, call.prompt_tokens + call.new_tokens):
            raise RuntimeError(f"generate gave {tuple(out.shape)} for {call}")


class PlainUnet:
    """The segmentation network as it is trained, batch normalisation and all, and its forward pass."""

    def __init__(self, shape: UnetShape, dtype: torch.dtype, device: torch.device) -> None:
        network = UNet(shape.width, shape.classes, shape.in_channels)
        self._network = network.eval().to(device=device, dtype=dtype)
        self._dtype = dtype
        self._device = device

    def tensors(self) -> Iterator[torch.Tensor]:
        """Parameters and running statistics."""
        yield from self._network.parameters()
        yield from self._network.buffers()

    @torch.inference_mode()
    def forward(self, images: Images) -> None:
        """One batch that comes from the host; the logits stay."""
        host = torch.zeros(images.batch, self._network.in_channels, images.height, images.width, dtype=self._dtype)
        logits = self._network(host.to(self._device))
        if logits.shape[-2:] != host.shape[-2:]:
            raise RuntimeError(f"the network gave {tuple(logits.shape)} for {images}")
