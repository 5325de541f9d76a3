"""What is done when memory runs out: a ladder of rungs, each tried once, each needing less than the one above."""

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

import torch

from backend import allocator
from backend.faults import Fault, fault_of, first_line, is_sound
from common.errors import DeviceLost

log = logging.getLogger(__name__)

Result = TypeVar("Result")

NO_MEMORY = "memory ran out, and no fallback could answer"
"""What a client is told at the ladder's end."""


class Rung(StrEnum):
    """By what means a request was answered; further down is slower, and needs less of the device."""

    NONE = "none"
    RECLAIM = "reclaim"
    """Free segments were given back, then the same again."""
    HALVE = "halve"
    """In smaller pieces, one after the other."""
    PREEMPT = "preempt"
    """The newest work gave way and was computed anew later."""
    HOST_CANVAS = "host_canvas"
    """The canvas lay in host memory."""
    HOST_CPU = "host_cpu"
    """Computed on the host, in float32."""
    FAILED = "failed"
    """No rung was left."""


def deeper(first: Rung, second: Rung) -> Rung:
    """The one further down the ladder."""
    return max(first, second, key=list(Rung).index)


Step = tuple[Rung, Callable[[], Result]]


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """What a ladder came to."""

    result: Result | None
    rung: Rung
    """The one that gave the result, or on which the work failed."""
    fault: Fault | None = None


class Ladder:
    """The ladder of one engine; used by its thread alone."""

    def __init__(self, device: torch.device, hear: Callable[[str, Exception], None], totals: Counter[str]) -> None:
        """`hear` is told of every failure while its memory is still held; `totals` counts ``oom_<rung>``."""
        self._device = device
        self._hear = hear
        self._totals = totals

    def climb(self, work: str, rungs: Iterable[Step[Result]]) -> Outcome[Result]:
        """The first result that a rung gives; another rung is tried only after one that ran out of memory.

        Raises DeviceLost where the device is.
        """
        first = True
        for rung, attempt in rungs:
            result, fault = self.attempt(work, attempt, rung)
            if fault is None:
                if not first:
                    self.count(rung)
                return Outcome(result, rung)
            if fault is Fault.WORK:
                return Outcome(None, rung, fault)
            first = False
        self.count(Rung.FAILED)
        return Outcome(None, Rung.FAILED, Fault.MEMORY)

    def count(self, rung: Rung) -> None:
        """Memory ran out, and this rung was the answer."""
        self._totals[f"oom_{rung}"] += 1

    def attempt(
        self, work: str, attempt: Callable[[], Result], rung: Rung = Rung.NONE
    ) -> tuple[Result | None, Fault | None]:
        """The result, or what kind of fault there was; by then nothing holds the tensors of a failed attempt.

        Free memory was given back after one that ran out of it. Raises DeviceLost where the device is.
        """
        try:
            return attempt(), None
        except DeviceLost:
            raise
        except Exception as error:
            fault, reason = fault_of(error), first_line(error)
            log.warning("%s failed (rung %s): %s", work, rung, type(error).__name__, exc_info=fault is Fault.WORK)
            self._hear(work, error)
        # Not in the except: the traceback holds the tensors of the attempt.
        if fault is Fault.LOST or not is_sound(self._device):
            raise DeviceLost(reason)
        if fault is Fault.MEMORY:
            reclaim(self._device)
        return None, fault


def reclaim(device: torch.device) -> int:
    """Frees what only young cycles of references hold, then gives free segments back; returns the bytes given back."""
    gc.collect(1)
    return allocator.release_free_segments(device)
