"""Residual and RMSNorm."""

import torch
import triton
import triton.language as tl

from backend.llama.kernels.launch import begin, launch_options


def add_norm(
    residual: torch.Tensor, partial: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds the partial sums [splits, tokens, hidden] to the residual [tokens, hidden], and normalises (RMSNorm).

    Returns the new residual and the normed tokens, both in the residual's dtype.
    """
    tokens, hidden = residual.shape
    added = residual if partial is None else torch.empty_like(residual)
    normed = torch.empty_like(residual)
    _add_norm[(tokens,)](
        residual,
        partial if partial is not None else residual,
        weight,
        added,
        normed,
        tokens,
        hidden,
        eps,
        SPLITS=0 if partial is None else partial.shape[0],
        WIDTH=triton.next_power_of_2(hidden),
        **launch_options(residual.device, warps=8),
    )
    return added, normed


@triton.jit
def _add_norm(
    residual,
    partial,
    weight,
    added,
    normed,
    tokens,
    hidden,
    eps,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    begin(OVERLAP)
    token = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    here = at < hidden
    x = tl.load(residual + token * hidden + at, mask=here, other=0.0).to(tl.float32)
    if SPLITS > 0:
        for split in tl.static_range(SPLITS):
            x += tl.load(partial + (split * tokens + token) * hidden + at, mask=here, other=0.0).to(tl.float32)
        x = x.to(added.dtype.element_ty)
        tl.store(added + token * hidden + at, x, mask=here)
        x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / hidden + eps)
    y = x * scale * tl.load(weight + at, mask=here, other=0.0).to(tl.float32)
    tl.store(normed + token * hidden + at, y.to(normed.dtype.element_ty), mask=here)
