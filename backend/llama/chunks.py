"""Slices of any length as one batch for the fused kernels."""

from collections.abc import Sequence
from itertools import accumulate

import torch

from backend.llama.fused import Batch
from backend.llama.kernels.chunks import ROWS, attend_chunks
from backend.llama.pages import PagePool
from backend.llama.scheduler import Slice
from estimator.llama import pages_for


class ChunkBatch:
    """A step's slices on the device, brought there in one copy that waits for nothing."""

    def __init__(self, slices: Sequence[Slice], pool: PagePool) -> None:
        """The slices in the order of their tokens."""
        width = max(pages_for(slice_.end, pool.page_tokens) for slice_ in slices)
        ends = list(accumulate(slice_.count for slice_ in slices))
        parts = (
            [token_id for slice_ in slices for token_id in slice_.token_ids],
            [position for slice_ in slices for position in range(slice_.start, slice_.end)],
            [row for row, slice_ in enumerate(slices) for _ in range(slice_.count)],
            [number for block in _blocks(slices, ends) for number in block],
            [page for slice_ in slices for page in _padded(slice_.sequence.pages, width, pool.trash)],
            [end - 1 for slice_, end in zip(slices, ends, strict=True) if slice_.samples],
        )
        host = torch.tensor(
            [number for part in parts for number in part],
            dtype=torch.int32,
            pin_memory=pool.device.type == "cuda",
        )
        token_ids, positions, rows, blocks, table, logit_rows = host.to(pool.device, non_blocking=True).split(
            [len(part) for part in parts]
        )
        self.batch = Batch(token_ids.long(), positions, rows, table.view(len(slices), width))
        self.logit_rows = logit_rows
        """[slices that sample]: the last token of each."""
        self._blocks = blocks.view(-1, 4)

    def attend(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """See :data:`backend.llama.fused.Attend`."""
        return attend_chunks(queries, keys, values, self.batch.table, self._blocks)


def _blocks(slices: Sequence[Slice], ends: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Work for :func:`attend_chunks`: each slice in blocks of at most ``ROWS`` tokens."""
    return [
        (end - slice_.count + first, min(ROWS, slice_.count - first), slice_.start + first, row)
        for row, (slice_, end) in enumerate(zip(slices, ends, strict=True))
        for first in range(0, slice_.count, ROWS)
    ]


def _padded(pages: Sequence[int], width: int, trash: int) -> list[int]:
    return [*pages[:width], *[trash] * (width - len(pages))]
