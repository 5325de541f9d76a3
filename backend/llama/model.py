"""The Llama network over plain tensors: fused projections, no state of its own, no knowledge of pages.

Tokens of any mixture of sequences lie flat, [tokens, ...]; what makes them sequences is the ``Attend`` function.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from estimator.llama import LlamaShape

FEW_ROWS = 8
"""So few rows times a matrix that is taller than wide are computed from the matrix's side on the CPU."""


class Attend(Protocol):
    """Attention over what was cached before and the tokens of this step."""

    def __call__(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Stores keys and values of a layer, [tokens, kv_heads, head_dim], and attends.

        `queries` [tokens, heads, head_dim]; queries and keys are rotated already. Returns [tokens, heads x head_dim].
        """


@dataclass(frozen=True)
class Linear:
    """A matrix [out, in] and, where the checkpoint has one, a bias [out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, in] -> [rows, out]."""
        if x.device.type == "cpu" and len(x) <= (FEW_ROWS if len(self.weight) > x.shape[1] else 2):
            out = _narrow_product(x, self.weight)
            return out if self.bias is None else out + self.bias
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Layer:
    """One block. ``qkv`` is queries, keys and values on top of each other, ``gate_up`` gate and up."""

    attention_norm: torch.Tensor
    qkv: Linear
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: ``inv_freq`` [head_dim / 2] float32 and a factor on both cosine and sine."""

    inv_freq: torch.Tensor
    scaling: float

    def angles(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine [tokens, 1, head_dim / 2] at `positions` [tokens], computed in float32."""
        angles = (positions.float()[:, None] * self.inv_freq)[:, None]
        return (angles.cos() * self.scaling).to(dtype), (angles.sin() * self.scaling).to(dtype)


@dataclass(frozen=True)
class Llama:
    """The weights of a model, and its forward pass."""

    shape: LlamaShape
    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: torch.Tensor
    """[vocab, hidden]; the embedding itself where they are tied."""
    rope: Rope
    norm_eps: float

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, logit_rows: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Logits [rows, vocab] after the tokens at `logit_rows` [rows] of `token_ids` [tokens], in the weights' dtype.

        `positions` [tokens] are places within each token's own sequence.
        """
        x = F.embedding(token_ids, self.embedding)
        cos, sin = self.rope.angles(positions, x.dtype)
        for index, layer in enumerate(self.layers):
            x = x + self._attention(index, layer, x, cos, sin, attend)
            x = x + self._mlp(layer, x)
        return self._logits(x[logit_rows])

    def _attention(
        self, index: int, layer: Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        qkv = layer.qkv(self._normed(x, layer.attention_norm)).view(len(x), -1, self.shape.head_dim)
        rotated = rotate(qkv[:, : heads + kv_heads], cos, sin)
        return layer.out(attend(index, rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :]))

    def _mlp(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(self._normed(x, layer.mlp_norm)).chunk(2, dim=-1)
        return layer.down(F.silu(gate).mul_(up))

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return Linear(self.head)(self._normed(x, self.norm))

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self.shape.hidden,), weight, self.norm_eps)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates [tokens, heads, head_dim] by the angles [tokens, 1, head_dim / 2], halves paired as Llama pairs them."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _narrow_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A few rows times a matrix, seen from the matrix's side: there the CPU library reads it at the memory's speed.

    One row is doubled: the library's own matrix-vector product takes half as long again (MKL on an AMD EPYC with
    AVX-512, 49152 x 576 in float32: 10 ms against 6 ms).
    """
    rows = len(x)
    return torch.mm(weight, (x.repeat(2, 1) if rows == 1 else x).t()).t()[:rows]
