"""Attention of chunks over the pages, all sequences of a step in one launch: flash attention over a page table."""

import torch
import triton
import triton.language as tl

from backend.llama.kernels.launch import begin, key_block, launch_options

_LOG2_E = 1.4426950408889634
ROWS = 128
"""Tokens of one sequence that a program takes together."""


def attend_chunks(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, blocks: torch.Tensor
) -> torch.Tensor:
    """Causal attention [tokens, heads x head_dim] of `queries` [tokens, heads, head_dim] over the pages.

    ``keys`` and ``values`` are one layer of the pool, [pages, page_tokens, kv_heads, head_dim]. Each row of `blocks`
    (int32) is work for one program: first row of the queries, their number, the first one's position, row of `table`.
    """
    tokens, heads, head_dim = queries.shape
    _, page_tokens, kv_heads, _ = keys.shape
    out = torch.empty((tokens, heads * head_dim), dtype=queries.dtype, device=queries.device)
    _attend_chunk[(len(blocks), heads)](
        queries,
        keys,
        values,
        out,
        table,
        blocks,
        head_dim**-0.5 * _LOG2_E,
        queries.stride(0),
        queries.stride(1),
        table.stride(0),
        keys.stride(0),
        keys.stride(2),
        keys.stride(1),
        GROUP=heads // kv_heads,
        ROWS=ROWS,
        DIM=head_dim,
        PAGE=page_tokens,
        BLOCK=key_block(page_tokens),
        **launch_options(queries.device, warps=8),
    )
    return out


@triton.jit
def _attend_chunk(
    queries,
    keys,
    values,
    out,
    table,
    blocks,
    scale,
    query_row,
    query_head,
    table_row,
    page_stride,
    head_stride,
    token_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    begin(OVERLAP)
    work = blocks + tl.program_id(0) * 4
    head = tl.program_id(1)
    first = tl.load(work)
    count = tl.load(work + 1)
    position = tl.load(work + 2)
    sequence = tl.load(work + 3)
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM)
    column = tl.arange(0, BLOCK)
    here = (row < count)[:, None]
    q = tl.load(queries + (first + row)[:, None] * query_row + head * query_head + dim[None, :], mask=here, other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for start in range(0, position + count, BLOCK):
        page = tl.load(table + sequence * table_row + start // PAGE).to(tl.int64)
        place = page * page_stride + (head // GROUP) * head_stride
        place += (start % PAGE + column)[:, None] * token_stride + dim[None, :]
        scores = tl.dot(q, tl.trans(tl.load(keys + place))) * scale
        scores = tl.where((start + column)[None, :] <= (position + row)[:, None], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(p, 1)
        v = tl.load(values + place)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
        top = higher
    target = ((first + row)[:, None] * tl.num_programs(1) + head) * DIM + dim[None, :]
    tl.store(out + target, (acc / total[:, None]).to(out.dtype.element_ty), mask=here)
