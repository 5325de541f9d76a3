"""Decode steps on CUDA: fused kernels, captured once as a CUDA graph for each size of batch, and replayed.

A graph runs on fixed buffers: the tokens, their positions and the pages of each sequence are copied in, the logits come
out in place. A smaller batch is padded with tokens that read and write the pool's page that is never lent.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from backend.llama.attention import Span
from backend.llama.kernels.attention import attend, store_qkv
from backend.llama.kernels.chunks import ChunkAttention
from backend.llama.kernels.launch import MIN_KEYS, key_block
from backend.llama.kernels.norms import add_norm
from backend.llama.kernels.products import gate_up, gated_product, product, tiling_for
from backend.llama.model import Linear, Llama
from backend.llama.pages import PagePool
from backend.llama.scheduler import Slice

FUSED_TOKENS = 64
"""Largest batch whose products our kernels do; above it the library's are as fast."""


def can_capture(model: Llama, page_tokens: int) -> bool:
    """Whether the fused step serves this model: half precision, no biases, heads and pages that tile evenly."""
    layer, shape = model.layers[0], model.shape
    biased = any(linear.bias is not None for linear in (layer.qkv, layer.out, layer.gate_up, layer.down))
    even = shape.head_dim in (32, 64, 128, 256) and key_block(page_tokens) >= MIN_KEYS
    return model.embedding.dtype != torch.float32 and not biased and even


class DecodeGraphs:
    """The captured steps of one model. All of them share one pool of memory, taken at ``capture``."""

    def __init__(self, model: Llama, pool: PagePool, max_batch: int, max_pages: int) -> None:
        """`max_pages`: of one sequence."""
        device = model.embedding.device
        self._model = model
        self._pool = pool
        self._token_ids = torch.zeros(max_batch, dtype=torch.int64, device=device)
        self._positions = torch.zeros(max_batch, dtype=torch.int32, device=device)
        self._table = torch.full((max_batch, max_pages), pool.trash, dtype=torch.int32, device=device)
        self._host = torch.empty((max_batch, max_pages + 2), dtype=torch.int32, pin_memory=True)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._sizes = batch_sizes(max_batch)

    def capture(self) -> None:
        """Compiles the kernels and captures every size of batch, largest first: the smaller ones fit its memory."""
        memory = torch.cuda.graph_pool_handle()
        for size in reversed(self._sizes):
            self._step(size)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=memory):
                logits = self._step(size)
            self._graphs[size] = (graph, logits)

    def attention(self, spans: Sequence[Span]) -> ChunkAttention:
        """See :class:`backend.llama.runner.FastPath`."""
        return ChunkAttention(self._pool, spans)

    def decode(self, decodes: Sequence[Slice]) -> torch.Tensor:
        """See :class:`backend.llama.runner.FastPath`."""
        count = len(decodes)
        size = next(size for size in self._sizes if size >= count)
        self._fill(decodes, size)
        graph, logits = self._graphs[size]
        graph.replay()
        return logits[:count]

    def _fill(self, decodes: Sequence[Slice], size: int) -> None:
        width = max(len(decode.sequence.pages) for decode in decodes)
        rows = [[*decode.token_ids, decode.start, *self._padded(decode.sequence.pages, width)] for decode in decodes]
        rows += [[0, 0, *[self._pool.trash] * width]] * (size - len(decodes))
        host = self._host[:size, : width + 2]
        host.copy_(torch.tensor(rows, dtype=torch.int32))
        device = host.to(self._table.device, non_blocking=True)
        self._token_ids[:size] = device[:, 0]
        self._positions[:size] = device[:, 1]
        self._table[:size, :width] = device[:, 2:]

    def _padded(self, pages: Sequence[int], width: int) -> list[int]:
        return [*pages, *[self._pool.trash] * (width - len(pages))]

    def _step(self, size: int) -> torch.Tensor:
        model, positions, table = self._model, self._positions[:size], self._table[:size]
        splits = cuts(size)
        x, partial = F.embedding(self._token_ids[:size], model.embedding), None
        for index, layer in enumerate(model.layers):
            keys, values = self._pool.layer(index)
            x, normed = add_norm(x, partial, layer.attention_norm, model.norm_eps)
            queries = store_qkv(
                _partial(normed, layer.qkv),
                positions,
                table,
                model.rope.inv_freq,
                model.rope.scaling,
                keys,
                values,
                model.shape.heads,
            )
            attended = attend(queries, keys, values, table, positions, splits)
            x, normed = add_norm(x, _partial(attended, layer.out), layer.mlp_norm, model.norm_eps)
            partial = _partial(_gated(normed, layer.gate_up), layer.down)
        _, normed = add_norm(x, partial, model.norm, model.norm_eps)
        sums = _partial(normed, Linear(model.head))
        return sums[0].float() if len(sums) == 1 else sums.sum(0)


def batch_sizes(max_batch: int) -> list[int]:
    """Powers of two up to `max_batch`, and that itself."""
    return sorted({1 << power for power in range(max_batch.bit_length()) if 1 << power <= max_batch} | {max_batch})


def cuts(size: int) -> int:
    """Pieces, a power of two, that the attention of each sequence is cut into: about 64 in all, 16 at the most."""
    return 1 << max(1, min(16, 64 // size)).bit_length() - 1


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
