"""What torch's CUDA caching allocator makes of tensors (``c10/core/AllocatorConfig.h``, torch 2.11).

Allocated bytes are exact: every tensor is rounded to 512 B. With the allocator's default configuration a large block
that is not worth splitting counts whole, which adds up to 1 MiB for each large tensor; with
``expandable_segments:True`` every block is split and nothing is added.

Reserved bytes are whole pages (expandable) or segments (default) of two pools that never share, and depend on the order
of things. How much more than its tensors a pool needs is measured, see :mod:`estimator.profile`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

BLOCK_BYTES = 512
SMALL_BYTES = 2**20
"""Blocks up to this size live in the small pool."""
SMALL_PAGE_BYTES = 2 * 2**20
LARGE_PAGE_BYTES = 20 * 2**20

Tensors = tuple[str, int, int]
"""What, how many, and the bytes of one before rounding."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of tensors in the two pools."""

    small_bytes: int
    large_bytes: int

    @property
    def total_bytes(self) -> int:
        """What the allocator counts as allocated."""
        return self.small_bytes + self.large_bytes


def round_up(size_bytes: int, step_bytes: int = BLOCK_BYTES) -> int:
    """The next multiple of the step; an empty tensor takes nothing."""
    return -(-size_bytes // step_bytes) * step_bytes


def footprint(tensors: Iterable[Tensors]) -> Footprint:
    """All of them at once, each rounded and in its pool."""
    small_bytes = large_bytes = 0
    for _, count, one_bytes in tensors:
        block_bytes = (one_bytes + 511) & -BLOCK_BYTES
        if block_bytes <= SMALL_BYTES:
            small_bytes += count * block_bytes
        else:
            large_bytes += count * block_bytes
    return Footprint(small_bytes, large_bytes)


def reserved_bytes(need: Footprint, free: Footprint) -> int:
    """What is mapped anew for `need` in pools that have `free` bytes mapped and unused, in whole pages."""
    small_bytes = max(0, need.small_bytes - free.small_bytes)
    large_bytes = max(0, need.large_bytes - free.large_bytes)
    return round_up(small_bytes, SMALL_PAGE_BYTES) + round_up(large_bytes, LARGE_PAGE_BYTES)
