"""How the kernels are launched."""

from typing import Any

import torch
import triton
import triton.language as tl

_MAX_KEYS = 64


def key_block(page_tokens: int) -> int:
    """Keys that are read at once: a power of two that divides a page, so that none lie beyond its end."""
    return min(_MAX_KEYS, page_tokens & -page_tokens)


def launch_options(device: torch.device, warps: int, stages: int = 3) -> dict[str, Any]:
    """Options of a launch. Every kernel waits for the one in front before it reads, so overlapping is safe."""
    if device.type != "cuda":
        return {"OVERLAP": False}
    options: dict[str, Any] = {"num_warps": warps, "num_stages": stages, "OVERLAP": _overlaps(device)}
    return options | ({"launch_pdl": True} if options["OVERLAP"] else {})


def _overlaps(device: torch.device) -> bool:
    """Whether a launch may begin before the one in front has ended (programmatic dependent launch, Hopper on)."""
    return (
        device.type == "cuda"
        and hasattr(tl.extra.cuda, "gdc_wait")
        and torch.cuda.get_device_capability(device) >= (9, 0)
    )


@triton.jit
def begin(OVERLAP: tl.constexpr):
    """First statement of every kernel: waits for the one in front, lets the next one come up."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
