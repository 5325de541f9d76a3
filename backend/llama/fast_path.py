"""Steps on CUDA: decodes as captured graphs, chunks over the same fused kernels as they come.

A graph runs on fixed buffers: the tokens, their positions and the pages of each sequence are copied in, the logits come
out in place. A smaller batch is padded with tokens that read and write the pool's page that is never lent.
"""

from collections.abc import Sequence

import torch

from backend.llama import fused
from backend.llama.chunks import ChunkBatch
from backend.llama.fused import Batch
from backend.llama.kernels.attention import attend
from backend.llama.model import Llama
from backend.llama.pages import PagePool
from backend.llama.scheduler import Slice


class CudaPath:
    """See :class:`backend.llama.runner.FastPath`. All graphs share one pool of memory, taken at ``capture``."""

    def __init__(self, model: Llama, pool: PagePool, max_batch: int, max_pages: int) -> None:
        """`max_pages`: of one sequence."""
        device = model.embedding.device
        self._model = model
        self._pool = pool
        self._batch = Batch(
            token_ids=torch.zeros(max_batch, dtype=torch.int64, device=device),
            positions=torch.zeros(max_batch, dtype=torch.int32, device=device),
            rows=torch.arange(max_batch, dtype=torch.int32, device=device),
            table=torch.full((max_batch, max_pages), pool.trash, dtype=torch.int32, device=device),
        )
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

    def decode(self, decodes: Sequence[Slice]) -> torch.Tensor:
        """See :class:`backend.llama.runner.FastPath`."""
        count = len(decodes)
        size = next(size for size in self._sizes if size >= count)
        self._fill(decodes, size)
        graph, logits = self._graphs[size]
        graph.replay()
        return logits[:count]

    def chunks(self, slices: Sequence[Slice]) -> torch.Tensor:
        """See :class:`backend.llama.runner.FastPath`."""
        chunks = ChunkBatch(slices, self._pool)
        return fused.forward(self._model, self._pool, chunks.batch, chunks.attend, chunks.logit_rows)

    def _fill(self, decodes: Sequence[Slice], size: int) -> None:
        width = max(len(decode.sequence.pages) for decode in decodes)
        trash = [self._pool.trash] * width
        rows = [
            [decode.last_token, decode.start, *decode.sequence.pages, *trash[len(decode.sequence.pages) :]]
            for decode in decodes
        ]
        rows += [[0, 0, *trash]] * (size - len(decodes))
        host = torch.tensor(rows, dtype=torch.int32, pin_memory=True)
        device = host.to(self._pool.device, non_blocking=True)
        self._batch.token_ids[:size] = device[:, 0]
        self._batch.positions[:size] = device[:, 1]
        self._batch.table[:size, :width] = device[:, 2:]

    def _step(self, size: int) -> torch.Tensor:
        whole = self._batch
        batch = Batch(whole.token_ids[:size], whole.positions[:size], whole.rows[:size], whole.table[:size])
        splits = cuts(size)
        return fused.forward(
            self._model,
            self._pool,
            batch,
            lambda queries, keys, values: attend(queries, keys, values, batch.table, batch.positions, splits),
        )


def batch_sizes(max_batch: int) -> list[int]:
    """Powers of two up to `max_batch`, and that itself."""
    return sorted({1 << power for power in range(max_batch.bit_length()) if 1 << power <= max_batch} | {max_batch})


def cuts(size: int) -> int:
    """Pieces, a power of two, that the attention of each sequence is cut into: about 64 in all, 16 at the most."""
    return 1 << max(1, min(16, 64 // size)).bit_length() - 1
