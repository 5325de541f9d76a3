"""What a snapshot tells of an engine, and what makes torch remember and call when memory runs out."""

import logging
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from backend import allocator
from backend.engine import Engine
from backend.snapshot import Snapshots, Trigger
from backend.watchdog import Watchdog
from common import report
from common.report import Memory, Reason, Report

log = logging.getLogger(__name__)

HISTORY = 20_000
"""Allocations that torch remembers; writing so many takes less than a second."""
LEASES = 256
ID_CHARS = 64
SUMMARY_CHARS = 16_384


class Witness:
    """Gathers the report of one engine. Only sizes, ids and names are asked for."""

    def __init__(self, engine: Engine[Any, Any], watchdog: Watchdog, device: torch.device, boot_id: str) -> None:
        self._engine = engine
        self._watchdog = watchdog
        self._device = device
        self._boot_id = boot_id

    def report(self, trigger: Trigger, at_s: float) -> Report:
        """What is known now; `at_s` is the unix time of the trigger."""
        footprint, watchdog, allocation = self._engine.footprint(), self._watchdog, allocator.read(self._device)
        largest = sorted(footprint.leases, key=lambda lease: lease.held_bytes, reverse=True)[:LEASES]
        return Report(
            at_s=at_s,
            reason=trigger.reason,
            model=self._engine.model,
            pid=os.getpid(),
            boot_id=self._boot_id,
            device=self._engine.device,
            step=trigger.step,
            where=trigger.where,
            asked_bytes=trigger.asked_bytes,
            limit_bytes=trigger.limit_bytes,
            device_free_bytes=trigger.device_free_bytes,
            reading=watchdog.reading,
            readings_state=watchdog.readings_state,
            margin_bytes=watchdog.margin_bytes,
            headroom_bytes=watchdog.headroom_bytes,
            memory=Memory(
                allocated_bytes=allocation.allocated_bytes,
                reserved_bytes=allocation.reserved_bytes,
                peak_allocated_bytes=allocation.peak_allocated_bytes,
                cached_bytes=allocation.cached_bytes,
                largest_free_block_bytes=allocation.largest_free_block_bytes,
                free_segments_bytes=allocation.free_segments_bytes,
            ),
            statistics=allocator.statistics(self._device),
            summary=allocator.summary(self._device)[:SUMMARY_CHARS],
            leases_active=len(footprint.leases),
            looks=watchdog.moments(),
            versions=versions(),
            **vars(replace(footprint, leases=tuple(replace(lease, id=lease.id[:ID_CHARS]) for lease in largest))),
        )


def versions() -> dict[str, str]:
    """What this process is made of."""
    told = {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda or "none"}
    try:
        told["vramgate"] = version("vramgate")
    except PackageNotFoundError:
        told["vramgate"] = "not installed"
    return told | {"system": platform.platform()}


def dump_history(file: Path) -> None:
    """Writes the allocator's history to `file`, for torch's viewer."""
    torch.cuda.memory._dump_snapshot(str(file))  # type: ignore[no-untyped-call]


def observe(snapshots: Snapshots) -> None:
    """From now on torch remembers allocations, and every one it must refuse is reported before anything unwinds."""
    torch.cuda.memory._record_memory_history(max_entries=HISTORY, context="alloc", stacks="python")
    torch._C._cuda_attach_out_of_memory_observer(snapshots.on_refusal)  # type: ignore[attr-defined]


def recall(folder: Path, model: str, pool_keys: Sequence[str]) -> float | None:
    """Tells operators of the newest snapshot of `model`, and of what was warm then and is not in `pool_keys` now.

    Returns the unix time when its memory last ran out.
    """
    reports = []
    for name, told in report.readable(folder):
        if isinstance(told, Report):
            reports += [(name, told)] if told.model == model else []
        else:
            log.warning("snapshot skipped: %s", told)
    if reports:
        name, newest = reports[0]
        what = newest.step or newest.reason
        log.warning("the newest snapshot of %s is %s (%s); see `vramgate snapshots show %s`", model, name, what, name)
        cold = [key for key in newest.pool_keys if key not in pool_keys]
        if cold:
            log.warning("%s was warm for %s then, and is for %s now", model, _join(cold), _join(pool_keys))
    return next((told.at_s for _, told in reports if told.reason is Reason.OOM), None)


def _join(keys: Sequence[str]) -> str:
    return ", ".join(keys) or "nothing"
