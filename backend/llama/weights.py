"""Weights from a Hugging Face folder, or random ones, straight into the fused layout.

Tensors are read one at a time out of memory-mapped safetensors files into their place, so loading never holds a second
copy of the model.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from backend.llama.model import Layer, Linear, Llama, Rope
from common.errors import SettingsError
from estimator.llama import LlamaShape

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
"""Embeddings that depend on the position alone; ``dynamic`` does so within the checkpoint's own context."""

_DUMMY_STD = 0.02


class Source(Protocol):
    """Where the checkpoint's tensors come from."""

    def fill(self, name: str, out: torch.Tensor) -> None:
        """Copies the tensor `name` into `out`; raises SettingsError when it is missing or has another shape."""


class Checkpoint:
    """The safetensors files of a folder: ``model.safetensors``, or shards and their index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = ExitStack()
        index = folder / "model.safetensors.index.json"
        names = sorted(set(_weight_map(index).values())) if index.is_file() else ["model.safetensors"]
        self._where: dict[str, Any] = {}
        for name in names:
            file = self._open(folder / name)
            self._where |= dict.fromkeys(file.keys(), file)

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def fill(self, name: str, out: torch.Tensor) -> None:
        """See :class:`Source`."""
        if name not in self._where:
            raise SettingsError(f"{self._folder} has no tensor {name}")
        tensor = self._where[name].get_tensor(name)
        if tensor.shape != out.shape:
            raise SettingsError(
                f"{self._folder}: {name} is {list(tensor.shape)}, but config.json says {list(out.shape)}"
            )
        out.copy_(tensor)

    def _open(self, path: Path) -> Any:
        try:
            return self._files.enter_context(safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            self._files.close()
            raise SettingsError(f"cannot read the weights {path}: {error}") from None


class RandomWeights:
    """Weights of the right size and of no meaning, for benchmarks; the same on every start."""

    def __init__(self, device: torch.device) -> None:
        self._generator = torch.Generator(device).manual_seed(0)

    def fill(self, name: str, out: torch.Tensor) -> None:
        """See :class:`Source`."""
        if "norm" in name:
            out.fill_(1.0)
        else:
            out.normal_(0.0, _DUMMY_STD, generator=self._generator)


def read_config(folder: Path) -> dict[str, Any]:
    """config.json as it is; raises SettingsError when it cannot be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read {folder / 'config.json'}: {error}") from None
    if not isinstance(config, dict):
        raise SettingsError(f"{folder / 'config.json'} is not a JSON object")
    return config


def build(config: dict[str, Any], source: Source, dtype: torch.dtype, device: torch.device) -> Llama:
    """The network of a config.json with `source`'s weights; raises SettingsError for what does not fit it."""
    shape = LlamaShape.from_config(config)
    reader = _Reader(source, dtype, device)
    embedding = reader.tensor("model.embed_tokens.weight", shape.vocab, shape.hidden)
    return Llama(
        shape=shape,
        embedding=embedding,
        layers=tuple(_layer(reader, shape, f"model.layers.{index}.") for index in range(shape.layers)),
        norm=reader.tensor("model.norm.weight", shape.hidden),
        head=embedding if shape.tied_embeddings else reader.tensor("lm_head.weight", shape.vocab, shape.hidden),
        rope=_rope(config, device),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
    )


class _Reader:
    """Allocates tensors and lets the source fill them."""

    def __init__(self, source: Source, dtype: torch.dtype, device: torch.device) -> None:
        self._source = source
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str, *size: int) -> torch.Tensor:
        """One tensor as the checkpoint has it."""
        return self._stacked([(name, size[0])], size[1:])

    def linear(self, parts: Sequence[tuple[str, int]], width: int, *, bias: bool) -> Linear:
        """One projection out of `parts` (name, rows), on top of each other."""
        weight = self._stacked([(f"{name}.weight", rows) for name, rows in parts], (width,))
        return Linear(weight, self._stacked([(f"{name}.bias", rows) for name, rows in parts], ()) if bias else None)

    def _stacked(self, parts: Sequence[tuple[str, int]], rest: tuple[int, ...]) -> torch.Tensor:
        rows = [count for _, count in parts]
        whole = torch.empty((sum(rows), *rest), dtype=self._dtype, device=self._device)
        for (name, _), part in zip(parts, torch.split(whole, rows), strict=True):
            self._source.fill(name, part)
        return whole


def _layer(reader: _Reader, shape: LlamaShape, prefix: str) -> Layer:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    kv_width = shape.kv_heads * shape.head_dim
    projections = [("q_proj", shape.q_width), ("k_proj", kv_width), ("v_proj", kv_width)]
    return Layer(
        attention_norm=reader.tensor(prefix + "input_layernorm.weight", shape.hidden),
        qkv=reader.linear(
            [(attention + name, rows) for name, rows in projections], shape.hidden, bias=shape.attention_bias
        ),
        out=reader.linear([(attention + "o_proj", shape.hidden)], shape.q_width, bias=shape.attention_bias),
        mlp_norm=reader.tensor(prefix + "post_attention_layernorm.weight", shape.hidden),
        gate_up=reader.linear(
            [(mlp + "gate_proj", shape.ffn), (mlp + "up_proj", shape.ffn)], shape.hidden, bias=shape.mlp_bias
        ),
        down=reader.linear([(mlp + "down_proj", shape.hidden)], shape.ffn, bias=shape.mlp_bias),
    )


def _rope(config: dict[str, Any], device: torch.device) -> Rope:
    """Frequencies by transformers' own functions, from old (``rope_scaling``) and new (``rope_parameters``) configs."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise SettingsError(f"config.json: rope_type {kind!r} is not served; it must be one of {ROPE_TYPES}")
    try:
        llama = LlamaConfig.from_dict({key: value for key, value in config.items() if key != "model_type"})
        embedding = LlamaRotaryEmbedding(llama)
    except Exception as error:  # whatever the library's validators raise
        raise SettingsError(f"config.json: {error}") from None
    return Rope(embedding.inv_freq.to(device), float(embedding.attention_scaling))


def _weight_map(index: Path) -> dict[str, str]:
    try:
        return dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"cannot read {index}: {error!r}") from None
