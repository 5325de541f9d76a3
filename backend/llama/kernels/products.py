"""Matrix products of few tokens."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from backend.llama.kernels.launch import begin, launch_options


@dataclass(frozen=True)
class Tiling:
    """How a product is cut: out columns and inner elements of a tile, cuts of the inner dimension, the launch."""

    columns: int
    inner: int
    splits: int
    warps: int
    stages: int


def product(x: torch.Tensor, weight: torch.Tensor, tiling: Tiling) -> torch.Tensor:
    """``x`` [tokens, in] times ``weight`` [out, in] transposed, as partial sums [splits, tokens, out] float32."""
    (tokens, inner), out = x.shape, weight.shape[0]
    partial = torch.empty((tiling.splits, tokens, out), dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(out, tiling.columns), tiling.splits)
    _product[grid](
        x,
        weight,
        partial,
        tokens,
        out,
        inner,
        triton.cdiv(triton.cdiv(inner, tiling.inner), tiling.splits) * tiling.inner,
        ROWS=_rows(tokens),
        COLUMNS=tiling.columns,
        INNER=tiling.inner,
        **launch_options(x.device, tiling.warps, tiling.stages),
    )
    return partial


def gated_product(x: torch.Tensor, weight: torch.Tensor, tiling: Tiling) -> torch.Tensor:
    """SwiGLU: ``silu(gate) * up`` [tokens, ffn], where ``weight`` [2 x ffn, in] is gate on top of up."""
    (tokens, inner), ffn = x.shape, weight.shape[0] // 2
    hidden = torch.empty((tokens, ffn), dtype=x.dtype, device=x.device)
    _gated_product[(triton.cdiv(ffn, tiling.columns),)](
        x,
        weight,
        hidden,
        tokens,
        ffn,
        inner,
        ROWS=_rows(tokens),
        COLUMNS=tiling.columns,
        INNER=tiling.inner,
        **launch_options(x.device, tiling.warps, tiling.stages),
    )
    return hidden


def gate_up(both: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` [tokens, ffn] of ``both`` [tokens, 2 x ffn], gate in front of up."""
    tokens, ffn = both.shape[0], both.shape[1] // 2
    hidden = torch.empty((tokens, ffn), dtype=both.dtype, device=both.device)
    _gate_up[(tokens, triton.cdiv(ffn, 1024))](both, hidden, ffn, WIDTH=1024, **launch_options(both.device, warps=4))
    return hidden


def _rows(tokens: int) -> int:
    """Rows of a tile: what the tensor cores take at least."""
    return max(16, int(triton.next_power_of_2(tokens)))


@triton.jit
def _product(
    x,
    weight,
    partial,
    tokens,
    out,
    inner,
    part,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    begin(OVERLAP)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    split = tl.program_id(1)
    first = split * part
    last = tl.minimum(first + part, inner)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, last, INNER):
        k = start + tl.arange(0, INNER)
        a = tl.load(
            x + row[:, None] * inner + k[None, :], mask=(row[:, None] < tokens) & (k[None, :] < last), other=0.0
        )
        b = tl.load(
            weight + column[:, None].to(tl.int64) * inner + k[None, :],
            mask=(column[:, None] < out) & (k[None, :] < last),
            other=0.0,
            eviction_policy="evict_first",
        )
        acc = tl.dot(a, tl.trans(b), acc)
    place = (split * tokens + row[:, None]).to(tl.int64) * out + column[None, :]
    tl.store(partial + place, acc, mask=(row[:, None] < tokens) & (column[None, :] < out))


@triton.jit
def _gated_product(
    x,
    weight,
    hidden,
    tokens,
    ffn,
    inner,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    begin(OVERLAP)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    gate = tl.zeros([ROWS, COLUMNS], tl.float32)
    up = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, inner, INNER):
        k = start + tl.arange(0, INNER)
        a = tl.load(
            x + row[:, None] * inner + k[None, :], mask=(row[:, None] < tokens) & (k[None, :] < inner), other=0.0
        )
        here = (column[:, None] < ffn) & (k[None, :] < inner)
        place = column[:, None].to(tl.int64) * inner + k[None, :]
        g = tl.load(weight + place, mask=here, other=0.0, eviction_policy="evict_first")
        u = tl.load(weight + place + ffn.to(tl.int64) * inner, mask=here, other=0.0, eviction_policy="evict_first")
        gate = tl.dot(a, tl.trans(g), gate)
        up = tl.dot(a, tl.trans(u), up)
    y = gate * tl.sigmoid(gate) * up
    place = row[:, None] * ffn + column[None, :]
    tl.store(hidden + place, y.to(hidden.dtype.element_ty), mask=(row[:, None] < tokens) & (column[None, :] < ffn))


@triton.jit
def _gate_up(both, hidden, ffn, WIDTH: tl.constexpr, OVERLAP: tl.constexpr):
    begin(OVERLAP)
    token = tl.program_id(0)
    at = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    gate = tl.load(both + token * 2 * ffn + at, mask=at < ffn, other=0.0).to(tl.float32)
    up = tl.load(both + token * 2 * ffn + ffn + at, mask=at < ffn, other=0.0).to(tl.float32)
    tl.store(hidden + token * ffn + at, (gate * tl.sigmoid(gate) * up).to(hidden.dtype.element_ty), mask=at < ffn)


def tiling_for(out: int, tokens: int) -> Tiling:
    """A good way to cut a product with `out` columns, found by timing on an H200 (bf16, Llama-3-8B's matrices).

    Few columns leave multiprocessors idle, so the inner dimension is cut; with more than 16 tokens the tile of the
    tokens takes the place of a pipeline stage.
    """
    splits = 1 if out > 16384 else (2 if out > 4096 or tokens > 16 else 4)
    if tokens > 16 and out > 65536:
        return Tiling(columns=128, inner=128, splits=1, warps=8, stages=4)
    return Tiling(columns=64, inner=128, splits=splits, warps=4, stages=4)
