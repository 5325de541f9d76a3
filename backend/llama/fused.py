"""The network's forward pass over fused kernels, for any tokens of a step: each weight read once, few launches.

The same pass serves decodes, where it is captured as a graph, and prefill chunks; only their attention differs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from backend.llama.kernels.attention import store_qkv
from backend.llama.kernels.norms import add_norm
from backend.llama.kernels.products import gate_up, gated_product, product, tiling_for
from backend.llama.model import Linear, Llama
from backend.llama.pages import PagePool
from estimator.llama import fuses

FUSED_TOKENS = 64
"""Largest batch whose products our kernels do; above it the library's are as fast."""

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Rotated queries [tokens, heads, head_dim] and one layer's cached keys and values -> [tokens, heads x head_dim]."""


@dataclass(frozen=True)
class Batch:
    """Tokens on the device. All int32 but the token ids, which are int64."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    """[tokens], each within its own sequence."""
    rows: torch.Tensor
    """[tokens], the row of `table` with the pages of each token's sequence."""
    table: torch.Tensor
    """[sequences, pages]."""


def can_fuse(model: Llama, page_tokens: int) -> bool:
    """Whether the kernels serve this model, see :func:`estimator.llama.fuses`."""
    return fuses(model.shape, str(model.embedding.dtype).removeprefix("torch."), page_tokens)


def forward(
    model: Llama, pool: PagePool, batch: Batch, attend: Attend, logit_rows: torch.Tensor | None = None
) -> torch.Tensor:
    """Stores keys and values of the batch; logits float32 [rows, vocab] of `logit_rows` [rows], or of every token."""
    x, partial = F.embedding(batch.token_ids, model.embedding), None
    for index, layer in enumerate(model.layers):
        keys, values = pool.layer(index)
        x, normed = add_norm(x, partial, layer.attention_norm, model.norm_eps)
        queries = store_qkv(
            _partial(normed, layer.qkv),
            batch.positions,
            batch.rows,
            batch.table,
            model.rope.inv_freq,
            model.rope.scaling,
            keys,
            values,
            model.shape.heads,
        )
        attended = attend(queries, keys, values)
        x, normed = add_norm(x, _partial(attended, layer.out), layer.mlp_norm, model.norm_eps)
        partial = _partial(_gated(normed, layer.gate_up), layer.down)
    _, normed = add_norm(x, partial, model.norm, model.norm_eps)
    if logit_rows is not None:
        normed = normed[logit_rows]
    if not len(normed):
        return torch.empty((0, model.shape.vocab), device=x.device)
    sums = _partial(normed, Linear(model.head))
    return sums[0].float() if len(sums) == 1 else sums.sum(0)


def _partial(x: torch.Tensor, linear: Linear) -> torch.Tensor:
    """Partial sums [splits, tokens, out]."""
    tokens, out = x.shape[0], linear.weight.shape[0]
    if tokens > FUSED_TOKENS:
        return F.linear(x, linear.weight)[None]
    return product(x, linear.weight, tiling_for(out, tokens))


def _gated(x: torch.Tensor, linear: Linear) -> torch.Tensor:
    if x.shape[0] > FUSED_TOKENS:
        return gate_up(F.linear(x, linear.weight))
    return gated_product(x, linear.weight, tiling_for(linear.weight.shape[0] // 2, x.shape[0]))
