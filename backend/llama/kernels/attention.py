"""Rotation, the write into the pages, and attention over them for one query a sequence."""

import torch
import triton
import triton.language as tl

from backend.llama.kernels.launch import begin, key_block, launch_options

_LOG2_E = 1.4426950408889634
_FEW_TOKENS = 64
"""Up to so many tokens a program stores one head, so that there are enough of them; above it, a block of heads."""
_FEW_HEADS, _MANY_HEADS = 1, 16


def store_qkv(
    partial: torch.Tensor,
    positions: torch.Tensor,
    rows: torch.Tensor,
    table: torch.Tensor,
    inv_freq: torch.Tensor,
    rope_scaling: float,
    keys: torch.Tensor,
    values: torch.Tensor,
    heads: int,
) -> torch.Tensor:
    """Adds the partial sums [splits, tokens, (heads + 2 x kv_heads) x head_dim], rotates, stores keys and values.

    ``keys`` and ``values`` are one layer of the pool, [pages, page_tokens, kv_heads, head_dim]; a token's place is its
    position in the pages of its row of ``table`` (all int32). Returns the queries [tokens, heads, head_dim].
    """
    splits, tokens, width = partial.shape
    _, page_tokens, kv_heads, head_dim = keys.shape
    queries = torch.empty((tokens, heads, head_dim), dtype=keys.dtype, device=keys.device)
    block = _FEW_HEADS if tokens <= _FEW_TOKENS else _MANY_HEADS
    _store_qkv[(tokens, triton.cdiv(heads + 2 * kv_heads, block))](
        partial,
        positions,
        rows,
        table,
        inv_freq,
        rope_scaling,
        queries,
        keys,
        values,
        tokens,
        width,
        table.stride(0),
        keys.stride(0),
        keys.stride(2),
        keys.stride(1),
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        PAGE=page_tokens,
        SPLITS=splits,
        BLOCK=block,
        **launch_options(partial.device, warps=1 if block == _FEW_HEADS else 4),
    )
    return queries


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    splits: int,
) -> torch.Tensor:
    """One query a sequence over its pages, up to and with its own position: [tokens, heads x head_dim].

    The queries of a group share a key/value head and are read together (grouped-query attention); a sequence is cut
    into ``splits`` (a power of two) that run side by side, and a second launch adds them up (flash decoding, Dao et
    al. 2023).
    """
    tokens, heads, head_dim = queries.shape
    _, page_tokens, kv_heads, _ = keys.shape
    group = heads // kv_heads
    out = torch.empty((tokens, heads * head_dim), dtype=queries.dtype, device=queries.device)
    sums = torch.empty((tokens, kv_heads, splits, group, head_dim), dtype=torch.float32, device=queries.device)
    weights = torch.empty((tokens, kv_heads, splits, group, 2), dtype=torch.float32, device=queries.device)
    _attend[(tokens, kv_heads, splits)](
        queries,
        keys,
        values,
        table,
        positions,
        out,
        sums,
        weights,
        head_dim**-0.5 * _LOG2_E,
        table.stride(0),
        keys.stride(0),
        keys.stride(2),
        keys.stride(1),
        GROUP=group,
        ROWS=max(16, triton.next_power_of_2(group)),
        DIM=head_dim,
        PAGE=page_tokens,
        BLOCK=key_block(page_tokens),
        SPLITS=splits,
        **launch_options(queries.device, warps=4),
    )
    if splits == 1:
        return out
    _combine[(tokens * kv_heads, group)](
        sums, weights, out, GROUP=group, DIM=head_dim, SPLITS=splits, **launch_options(queries.device, warps=1)
    )
    return out


def cuts(sequences: int) -> int:
    """Pieces, a power of two, that the attention of each sequence is cut into: about 64 in all, 16 at the most."""
    return 1 << max(1, min(16, 64 // sequences)).bit_length() - 1


@triton.jit
def _store_qkv(
    partial,
    positions,
    rows,
    table,
    inv_freq,
    rope_scaling,
    queries,
    keys,
    values,
    tokens,
    width,
    table_row,
    page_stride,
    head_stride,
    token_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    begin(OVERLAP)
    token = tl.program_id(0)
    head = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[:, None]
    half = tl.arange(0, HALF)[None, :]
    real = head < HEADS + 2 * KV_HEADS
    first = tl.zeros([BLOCK, HALF], tl.float32)
    second = tl.zeros([BLOCK, HALF], tl.float32)
    for split in tl.static_range(SPLITS):
        base = partial + (split * tokens + token).to(tl.int64) * width + head * 2 * HALF + half
        first += tl.load(base, mask=real, other=0.0).to(tl.float32)
        second += tl.load(base + HALF, mask=real, other=0.0).to(tl.float32)
    position = tl.load(positions + token)
    angle = position.to(tl.float32) * tl.load(inv_freq + half)
    is_value = head >= HEADS + KV_HEADS
    cos = tl.where(is_value, 1.0, tl.cos(angle) * rope_scaling)
    sin = tl.where(is_value, 0.0, tl.sin(angle) * rope_scaling)
    kind = queries.dtype.element_ty
    turned_first = (first * cos - second * sin).to(kind)
    turned_second = (second * cos + first * sin).to(kind)
    is_query = head < HEADS
    target = queries + (token * HEADS + head) * 2 * HALF + half
    tl.store(target, turned_first, mask=is_query)
    tl.store(target + HALF, turned_second, mask=is_query)
    page = tl.load(table + tl.load(rows + token) * table_row + position // PAGE).to(tl.int64)
    place = page * page_stride + (position % PAGE) * token_stride + half
    is_key = (head >= HEADS) & (head < HEADS + KV_HEADS)
    target = keys + place + (head - HEADS) * head_stride
    tl.store(target, turned_first, mask=is_key)
    tl.store(target + HALF, turned_second, mask=is_key)
    target = values + place + (head - HEADS - KV_HEADS) * head_stride
    tl.store(target, turned_first, mask=is_value & real)
    tl.store(target + HALF, turned_second, mask=is_value & real)


@triton.jit
def _attend(
    queries,
    keys,
    values,
    table,
    positions,
    out,
    sums,
    weights,
    scale,
    table_row,
    page_stride,
    head_stride,
    token_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    begin(OVERLAP)
    token = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(positions + token) + 1
    blocks = tl.cdiv(length, BLOCK)
    part = tl.cdiv(blocks, SPLITS)
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM)
    column = tl.arange(0, BLOCK)
    kv_heads = tl.num_programs(1)
    query = token * kv_heads * GROUP + head * GROUP + row
    q = tl.load(queries + query[:, None] * DIM + dim[None, :], mask=row[:, None] < GROUP, other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for block in range(split * part, tl.minimum(split * part + part, blocks)):
        start = block * BLOCK
        page = tl.load(table + token * table_row + start // PAGE).to(tl.int64)
        place = page * page_stride + head * head_stride + (start % PAGE + column)[:, None] * token_stride + dim[None, :]
        scores = tl.dot(q, tl.trans(tl.load(keys + place))) * scale
        scores = tl.where((start + column)[None, :] < length, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(p, 1)
        v = tl.load(values + place)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
        top = higher
    place = ((token * kv_heads + head) * SPLITS + split) * GROUP + row
    here = row < GROUP
    if SPLITS == 1:
        target = out + (token * kv_heads + head) * GROUP * DIM
        done = (acc / total[:, None]).to(out.dtype.element_ty)
        tl.store(target + row[:, None] * DIM + dim[None, :], done, mask=here[:, None])
        return
    tl.store(sums + place[:, None] * DIM + dim[None, :], acc, mask=here[:, None])
    tl.store(weights + place * 2, top, mask=here)
    tl.store(weights + place * 2 + 1, total, mask=here)


@triton.jit
def _combine(sums, weights, out, GROUP: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, OVERLAP: tl.constexpr):
    begin(OVERLAP)
    sequence_head = tl.program_id(0)
    member = tl.program_id(1)
    place = (sequence_head * SPLITS + tl.arange(0, SPLITS)) * GROUP + member
    dim = tl.arange(0, DIM)
    top = tl.load(weights + place * 2)
    weight = tl.where(top == float("-inf"), 0.0, tl.exp2(top - tl.max(top, 0)))
    total = tl.sum(tl.load(weights + place * 2 + 1) * weight, 0)
    acc = tl.sum(tl.load(sums + place[:, None] * DIM + dim[None, :]) * weight[:, None], 0)
    target = (sequence_head * GROUP + member) * DIM + dim
    tl.store(out + target, (acc / total).to(out.dtype.element_ty))
