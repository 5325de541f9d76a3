"""Attention over pages: the reference path, right on any device.

A step's tokens lie flat: first one token of each decoding sequence, then prefill chunks. Decodes go in groups whose
pages, padded to the longest of the group, fit a fixed workspace; each chunk goes alone. The queries that share a
key/value head are laid beside each other, so nothing is repeated for grouped-query attention.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from backend.llama.pages import PagePool
from estimator.llama import pages_for


@dataclass(frozen=True)
class Span:
    """Tokens of one sequence in a step: `count` of them from position `start` on, cached in `pages`."""

    pages: Sequence[int]
    start: int
    count: int

    @property
    def end(self) -> int:
        """Tokens cached once the step is done."""
        return self.start + self.count


@dataclass(frozen=True)
class Reads:
    """Rows of a step that attend together."""

    rows: slice
    """Which tokens of the step ask."""
    table: torch.Tensor
    """Pages they read [sequences, pages]."""
    keys: int
    """Tokens they read at the most."""
    lone_page: int | None
    """The page, where there is but one: then it is read in place."""
    mask: torch.Tensor | None
    """Additive, [sequences, 1, 1, keys] or [queries, keys]; None where every key counts."""


class PagedAttention:
    """One step's attention: where its tokens are written, and what each of them reads."""

    def __init__(self, pool: PagePool, spans: Sequence[Span], gather_pages: int) -> None:
        """`spans` in the order of the step's tokens, all of one token before all longer ones."""
        self._pool = pool
        size = pool.page_tokens
        places = [(span, position) for span in spans for position in range(span.start, span.end)]
        self._pages = torch.tensor([span.pages[position // size] for span, position in places], device=pool.device)
        self._offsets = torch.tensor([position % size for _, position in places], device=pool.device)
        decodes = [span for span in spans if span.count == 1]
        self._decodes = list(_decode_reads(pool, decodes, gather_pages))
        self._chunks = list(_chunk_reads(pool, spans[len(decodes) :], row=len(decodes)))

    def __call__(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """See :class:`backend.llama.model.Attend`."""
        pool_keys, pool_values = self._pool.layer(layer)
        pool_keys[self._pages, self._offsets] = keys
        pool_values[self._pages, self._offsets] = values
        out = torch.empty_like(queries, memory_format=torch.contiguous_format)
        for reads in self._decodes:
            _decode(reads, queries, pool_keys, pool_values, out)
        for reads in self._chunks:
            _prefill(reads, queries, pool_keys, pool_values, out)
        return out.flatten(1)


def _decode(
    reads: Reads, queries: torch.Tensor, pool_keys: torch.Tensor, pool_values: torch.Tensor, out: torch.Tensor
) -> None:
    """One query of each sequence; the heads of a group are the query axis."""
    keys, values = _gather(pool_keys, reads), _gather(pool_values, reads)
    grouped = queries[reads.rows].view(len(keys), keys.shape[1], -1, keys.shape[3])
    result = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=reads.mask)
    out[reads.rows] = result.flatten(1, 2)


def _prefill(
    reads: Reads, queries: torch.Tensor, pool_keys: torch.Tensor, pool_values: torch.Tensor, out: torch.Tensor
) -> None:
    """Many queries of one sequence; the heads of a group are the batch axis, over one copy of keys and values."""
    keys, values = _gather(pool_keys, reads), _gather(pool_values, reads)
    asking = queries[reads.rows]
    grouped = asking.view(len(asking), keys.shape[1], -1, keys.shape[3]).permute(2, 1, 0, 3)
    shared = (len(grouped), -1, -1, -1)
    result = F.scaled_dot_product_attention(grouped, keys.expand(shared), values.expand(shared), attn_mask=reads.mask)
    out[reads.rows] = result.permute(2, 1, 0, 3).flatten(1, 2)


def _gather(pool: torch.Tensor, reads: Reads) -> torch.Tensor:
    """[sequences, kv_heads, keys, head_dim]: a view of a lone page, else one copy of all pages of the table."""
    if reads.lone_page is not None:
        pages = pool.narrow(0, reads.lone_page, 1)
    else:
        pages = pool.index_select(0, reads.table.flatten()).view(len(reads.table), -1, *pool.shape[2:])
    return pages[:, : reads.keys].transpose(1, 2)


def _decode_reads(pool: PagePool, spans: Sequence[Span], gather_pages: int) -> Iterator[Reads]:
    """Groups of neighbouring spans; few and little padded when they are sorted by length."""
    row = 0
    while row < len(spans):
        count, width = 0, 0
        for span in spans[row:]:
            width = max(width, pages_for(span.end, pool.page_tokens))
            if count and (count + 1) * width > gather_pages:
                break
            count += 1
        group = spans[row : row + count]
        lengths = torch.tensor([span.end for span in group], device=pool.device)
        yield _reads(pool, group, row, count, lengths[:, None, None, None])
        row += count


def _chunk_reads(pool: PagePool, spans: Sequence[Span], row: int) -> Iterator[Reads]:
    for span in spans:
        lengths = torch.arange(span.start + 1, span.end + 1, device=pool.device)
        yield _reads(pool, [span], row, span.count, lengths[:, None])
        row += span.count


def _reads(pool: PagePool, spans: Sequence[Span], row: int, rows: int, lengths: torch.Tensor) -> Reads:
    """`lengths` [..., 1]: how many keys each query sees."""
    keys = max(span.end for span in spans)
    width = pages_for(keys, pool.page_tokens)
    table = [[*span.pages[:width], *[pool.trash] * (width - len(span.pages))] for span in spans]
    hidden = torch.arange(keys, device=pool.device) >= lengths
    mask = torch.zeros(hidden.shape, dtype=pool.dtype, device=pool.device).masked_fill_(hidden, float("-inf"))
    return Reads(
        rows=slice(row, row + rows),
        table=torch.tensor(table, device=pool.device),
        keys=keys,
        lone_page=table[0][0] if len(table) == width == 1 else None,
        mask=mask if rows > 1 else None,
    )
