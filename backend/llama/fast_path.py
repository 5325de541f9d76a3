"""Steps on CUDA over the fused kernels: decodes as captured graphs, chunks with the decodes beside them as they come.

A graph runs on fixed buffers: the tokens, their positions and the pages of each sequence are copied in, the logits come
out in place. A smaller batch is padded with tokens that read and write the pool's page that is never lent.
"""

from collections.abc import Sequence

import torch

from backend.device import upload
from backend.llama import fused
from backend.llama.flight import Flight, resolve
from backend.llama.fused import Batch
from backend.llama.kernels.attention import attend, cuts
from backend.llama.mixed import MixedBatch
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
        self._shown: list[tuple[list[int], int]] = []
        """The pages in each row of the table, and how many they were."""
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

    def forward(self, step: Sequence[Slice], before: Flight | None = None) -> torch.Tensor:
        """See :class:`backend.llama.runner.FastPath`."""
        if all(slice_.is_decode for slice_ in step):
            return self._decode(step, before)
        mixed = MixedBatch(step, self._pool, before)
        return fused.forward(self._model, self._pool, mixed.batch, mixed.attend, mixed.logit_rows)

    def _decode(self, decodes: Sequence[Slice], before: Flight | None) -> torch.Tensor:
        count = len(decodes)
        size = next(size for size in self._sizes if size >= count)
        padding = [0] * (size - count)
        tokens = [decode.last_token for decode in decodes] + padding
        positions = [decode.start for decode in decodes] + padding
        sent = upload(tokens + positions, torch.int32, self._pool.device)
        self._batch.token_ids[:size] = resolve(sent[:size].long(), before)
        self._batch.positions[:size] = sent[size:]
        self._show_pages(decodes, size)
        graph, logits = self._graphs[size]
        graph.replay()
        return logits[:count]

    def _show_pages(self, decodes: Sequence[Slice], size: int) -> None:
        """Brings the table up to date; from one step to the next most rows stay as they are."""
        wanted = [(decode.sequence.pages, len(decode.sequence.pages)) for decode in decodes]
        wanted += [(_NO_PAGES, 0)] * (size - len(decodes))
        stale = [
            row
            for row, (pages, count) in enumerate(wanted)
            if row >= len(self._shown) or self._shown[row][0] is not pages or self._shown[row][1] != count
        ]
        if not stale:
            return
        width = max(1, max(wanted[row][1] for row in stale))
        rows = [[*wanted[row][0], *[self._pool.trash] * (width - wanted[row][1])] for row in stale]
        sent = upload([[row, *pages] for row, pages in zip(stale, rows, strict=True)], torch.int32, self._pool.device)
        self._batch.table[:, :width].index_copy_(0, sent[:, 0].long(), sent[:, 1:])
        self._shown[:size] = wanted

    def _step(self, size: int) -> torch.Tensor:
        whole = self._batch
        batch = Batch(whole.token_ids[:size], whole.positions[:size], whole.rows[:size], whole.table[:size])
        return fused.forward(
            self._model,
            self._pool,
            batch,
            lambda queries, keys, values: attend(queries, keys, values, batch.table, batch.positions, cuts(size)),
        )


_NO_PAGES: list[int] = []
"""Of a row of padding: it reads and writes the page that is never lent."""


def batch_sizes(max_batch: int) -> list[int]:
    """Powers of two up to `max_batch`, and that itself."""
    return sorted({1 << power for power in range(max_batch.bit_length()) if 1 << power <= max_batch} | {max_batch})
