"""What the card says (:mod:`common.nvml`), or host memory where there is none; a reading is known, stale or unknown.

Zero is a reading like any other and never means "no limit"; a card that cannot be read is *unknown*, and the
ledger alone decides then.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

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
    """``nvml-v2``, ``nvml-v1``, ``cuda``, ``unified`` (the board's memory is the host's) or ``host``."""


class Card(Protocol):
    """Something that can be read."""

    @property
    def name(self) -> str:
        """What an operator calls it."""

    def read(self) -> Reading | None:
        """A fresh reading, or None when the card does not answer."""


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


@dataclass(frozen=True)
class FirstOf:
    """One card that can be read in several ways: the first that answers counts."""

    ways: tuple[Card, ...]

    @property
    def name(self) -> str:
        """As the first way calls it."""
        return self.ways[0].name

    def read(self) -> Reading | None:
        """Of the first way that gives one."""
        return next((reading for reading in (way.read() for way in self.ways) if reading is not None), None)


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


def host_memory(meminfo: Path = Path("/proc/meminfo")) -> Reading | None:
    """All of the host's memory, for boards that have none of their own; what the kernel can reclaim is free."""
    try:
        lines = (line.split() for line in meminfo.read_text(encoding="ascii").splitlines())
        sizes = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
        total_bytes, free_bytes = sizes["MemTotal:"], sizes["MemAvailable:"]
    except (OSError, KeyError, ValueError):
        return None
    return Reading(total_bytes, free_bytes, total_bytes - free_bytes, 0, "unified")


def resident_bytes(pid: int) -> int:
    """Resident set of a process; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
