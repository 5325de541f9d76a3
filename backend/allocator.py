"""What torch's caching allocator says of this process. On the CPU there is no such allocator and every figure is 0.

What a process on the CPU has freed may stay in its heap, and a resident set counts it: it goes back only if asked.
"""

import ctypes
import os
from dataclasses import dataclass

import torch

from common.readings import resident_bytes


@dataclass(frozen=True)
class Allocation:
    """State of the allocator, in bytes."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    """Since the last ``reset_peak``."""
    free_segments_bytes: int = 0
    """Segments without a live block: what ``empty_cache`` would give back to the card."""
    cached_bytes: int = 0
    """Free inside the segments."""
    largest_free_block_bytes: int = 0

    @property
    def fragmentation_ratio(self) -> float:
        """1 - largest free block / all free cached bytes; 0 when nothing is cached."""
        return 1 - self.largest_free_block_bytes / self.cached_bytes if self.cached_bytes else 0.0


def read(device: torch.device) -> Allocation:
    """The allocator's state on `device`; walks the segments, so keep it off the hot path."""
    if device.type != "cuda":
        return Allocation()
    free_segments_bytes = free_bytes = largest_bytes = 0
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        if segment["device"] != device.index:
            continue
        blocks = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
        free_bytes += sum(blocks)
        largest_bytes = max(largest_bytes, *blocks, 0)
        if sum(blocks) == segment["total_size"]:
            free_segments_bytes += segment["total_size"]
    return Allocation(
        allocated_bytes=torch.cuda.memory_allocated(device),
        reserved_bytes=torch.cuda.memory_reserved(device),
        peak_allocated_bytes=torch.cuda.max_memory_allocated(device),
        free_segments_bytes=free_segments_bytes,
        cached_bytes=free_bytes,
        largest_free_block_bytes=largest_bytes,
    )


def peak_bytes(device: torch.device) -> int:
    """Highest allocated bytes since the last ``reset_peak``; 0 on the CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def reset_peak(device: torch.device) -> None:
    """Starts a new measurement of the peak; frees nothing."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def statistics(device: torch.device) -> dict[str, int]:
    """The allocator's counters that tell of trouble, by torch's names; {} on the CPU."""
    if device.type != "cuda":
        return {}
    told = torch.cuda.memory_stats(device)
    return {key: int(value) for key, value in told.items() if ".all." in key or key.startswith("num_")}


def summary(device: torch.device) -> str:
    """torch's own table of the allocator; empty on the CPU."""
    return torch.cuda.memory_summary(device, abbreviated=True) if device.type == "cuda" else ""


def release_free_segments(device: torch.device) -> int:
    """Gives wholly free segments, on the CPU free pages of the heap, back; returns the bytes given back."""
    if device.type != "cuda":
        return _trim_heap()
    before_bytes = torch.cuda.memory_reserved(device)
    torch.cuda.empty_cache()
    return before_bytes - torch.cuda.memory_reserved(device)


def wall(device: torch.device, grant_bytes: int) -> None:
    """Makes the allocator refuse more than `grant_bytes` in all, so that a wrong price hurts only its own model."""
    if device.type == "cuda":
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, grant_bytes / total_bytes), device)


def _trim_heap() -> int:
    """Returns how far the resident set shrank; 0 where the C library has no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return 0
    before_bytes = resident_bytes(os.getpid())
    trim(0)
    return max(0, before_bytes - resident_bytes(os.getpid()))
