"""What the card says: NVML, or host memory where there is no GPU; every reading is known, stale or unknown.

Zero is a reading like any other and never means "no limit"; a card that cannot be read is *unknown*, and the
ledger alone decides then.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from common.sections import Card as CardSettings

GIB = 2**30


class State(StrEnum):
    """How far a reading can be trusted."""

    KNOWN = "known"
    STALE = "stale"
    """The last good reading is older than one poll, but not yet too old."""
    UNKNOWN = "unknown"
    """There is no reading, or the last good one is too old."""


@dataclass(frozen=True)
class Reading:
    """One look at the card, in bytes; ``free + used + reserved == total``."""

    total_bytes: int
    free_bytes: int
    used_bytes: int
    reserved_bytes: int
    """Held by the driver itself; 0 where NVML cannot tell it from `used_bytes`."""
    source: str
    """``nvml-v2``, ``nvml-v1`` or ``host``."""


class Card(Protocol):
    """Something that can be read."""

    @property
    def name(self) -> str:
        """What an operator calls it."""

    def read(self) -> Reading | None:
        """A fresh reading, or None when the card does not answer."""


class NvmlCard:
    """A GPU by its UUID, through NVML; falls back from the v2 to the v1 structure."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self.uuid = uuid

    @property
    def name(self) -> str:
        """Product name and UUID."""
        return f"{self._nvml.nvmlDeviceGetName(self._handle)} {self.uuid}"

    def read(self) -> Reading | None:
        """About 5 us. None when both structures fail, or the numbers contradict themselves."""
        for source, arguments in (("nvml-v2", {"version": self._nvml.nvmlMemory_v2}), ("nvml-v1", {})):
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle, **arguments)
            except self._nvml.NVMLError:
                continue
            reserved_bytes = int(getattr(memory, "reserved", 0))
            reading = Reading(int(memory.total), int(memory.free), int(memory.used), reserved_bytes, source)
            if reading.total_bytes > 0 and 0 <= reading.free_bytes <= reading.total_bytes:
                return reading
        return None


class HostCard:
    """A slice of host memory played as a card: what the engines' processes hold resident is used."""

    name = "host memory"

    def __init__(self, total_bytes: int, pids: Callable[[], Iterable[int]]) -> None:
        self._total_bytes = total_bytes
        self._pids = pids

    def read(self) -> Reading | None:
        """Sum of the resident sets; a process that is gone counts nothing."""
        used_bytes = sum(resident_bytes(pid) for pid in self._pids())
        free_bytes = max(0, self._total_bytes - used_bytes)
        return Reading(self._total_bytes, free_bytes, self._total_bytes - free_bytes, 0, "host")


class Readings:
    """The newest good reading and how old it is. ``poll`` acts and may block; ``latest`` and ``state`` never do."""

    def __init__(self, card: Card, clock: Callable[[], float], poll_s: float, stale_polls: int) -> None:
        self._card = card
        self._clock = clock
        self._fresh_s = 1.5 * poll_s
        self._usable_s = poll_s * stale_polls
        self._latest: Reading | None = None
        self._read_at_s = -float("inf")

    def poll(self) -> Reading | None:
        """Reads the card now and keeps the reading; None when the card did not answer."""
        reading = self._card.read()
        if reading is not None:
            self._latest, self._read_at_s = reading, self._clock()
        return reading

    @property
    def latest(self) -> Reading | None:
        """The newest good reading, however old."""
        return self._latest

    @property
    def state(self) -> State:
        """How far ``latest`` can be trusted now."""
        age_s = self._clock() - self._read_at_s
        if age_s <= self._fresh_s:
            return State.KNOWN
        return State.STALE if age_s <= self._usable_s else State.UNKNOWN


def host_total_bytes(settings: CardSettings) -> int:
    """Size of the host slice: as set, else 4 GiB or half of the memory, whichever is less."""
    if settings.total is not None:
        return int(settings.total)
    return min(4 * GIB, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


def resident_bytes(pid: int) -> int:
    """Resident set of a process; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
