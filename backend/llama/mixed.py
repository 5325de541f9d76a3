"""Slices of any length, decodes among chunks, as one batch for the fused kernels."""

from collections.abc import Iterable, Sequence

import torch

from backend.device import upload
from backend.llama.flight import Flight, resolve
from backend.llama.fused import Batch
from backend.llama.kernels.attention import attend, cuts
from backend.llama.kernels.chunks import ROWS, attend_chunks
from backend.llama.pages import PagePool
from backend.llama.scheduler import Slice
from estimator.llama import pages_for


class MixedBatch:
    """A step on the device, brought there in one copy that waits for nothing; slices of one token lie in front."""

    def __init__(self, step: Sequence[Slice], pool: PagePool, before: Flight | None = None) -> None:
        """`before` is the step whose tokens are in flight."""
        order = sorted(range(len(step)), key=lambda index: step[index].count > 1)
        slices = [step[index] for index in order]
        self._singles = sum(slice_.count == 1 for slice_ in slices)
        width = max(pages_for(slice_.end, pool.page_tokens) for slice_ in slices)
        first_row, rows = {}, 0
        for index in order:
            first_row[index] = rows
            rows += step[index].count
        parts: tuple[list[int], ...] = (
            [token_id for slice_ in slices for token_id in slice_.token_ids],
            [position for slice_ in slices for position in range(slice_.start, slice_.end)],
            [row for row, slice_ in enumerate(slices) for _ in range(slice_.count)],
            [page for slice_ in slices for page in _padded(slice_.sequence.pages, width, pool.trash)],
            [first_row[index] + slice_.count - 1 for index, slice_ in enumerate(step) if slice_.samples],
            [number for block in _blocks(slices, self._singles) for number in block],
        )
        sent = upload([number for part in parts for number in part], torch.int32, pool.device)
        pieces = torch.split_with_sizes(sent, [len(part) for part in parts])
        token_ids, self._positions, table_rows, table, self.logit_rows, blocks = pieces
        self._table = table.view(len(slices), width)
        self._blocks = blocks.view(-1, 4)
        self.batch = Batch(resolve(token_ids.long(), before), self._positions, table_rows, self._table)

    def attend(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """See :data:`backend.llama.fused.Attend`."""
        singles = self._singles
        if not len(self._blocks):
            return attend(queries, keys, values, self._table, self._positions, cuts(singles))
        out = attend_chunks(queries, keys, values, self._table, self._blocks)
        if singles:
            out[:singles] = attend(queries[:singles], keys, values, self._table, self._positions, cuts(singles))
        return out


def _blocks(slices: Sequence[Slice], singles: int) -> Iterable[tuple[int, int, int, int]]:
    """Work for :func:`attend_chunks`: all slices but the first `singles`, in blocks of at most ``ROWS`` tokens."""
    row = singles
    for number in range(singles, len(slices)):
        slice_ = slices[number]
        for first in range(0, slice_.count, ROWS):
            yield row + first, min(ROWS, slice_.count - first), slice_.start + first, number
        row += slice_.count


def _padded(pages: Sequence[int], width: int, trash: int) -> list[int]:
    return [*pages[:width], *[trash] * (width - len(pages))]
