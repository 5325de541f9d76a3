"""Leaves evidence when memory ran short: one folder a snapshot, few of them, and never a second fault.

Whatever goes wrong here is logged and goes no further. One snapshot a second is taken, the newest of each reason are
kept, and nobody waits longer than a fixed time for one.
"""

import logging
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from backend.faults import is_out_of_memory
from common import report
from common.report import Reason, Report

log = logging.getLogger(__name__)

KEPT = 3
"""Snapshots of each reason that stay."""
PAUSE_S = 1.0
"""Between the starts of two snapshots."""
WAIT_S = 2.0
"""Longest that anyone waits for a snapshot; it is finished behind his back."""
STALE_S = 60.0
"""Age at which an unfinished folder is taken to be left over from a process that died."""
MAX_PICKLE_BYTES = 64 * 2**20
FRAMES = 32
UNFINISHED = ".unfinished-"


@dataclass(frozen=True)
class Trigger:
    """Why a snapshot is taken, and what was known then."""

    reason: Reason
    step: str = ""
    where: tuple[str, ...] = ()
    asked_bytes: int | None = None
    limit_bytes: int | None = None
    device_free_bytes: int | None = None


class Snapshots:
    """The snapshots of one engine's process, in `folder`; thread-safe, and nothing here raises."""

    def __init__(
        self,
        folder: Path,
        gather: Callable[[Trigger, float], Report],
        dump: Callable[[Path], None] | None = None,
        last_oom_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`gather` makes the report of a trigger at a unix time; `dump` writes the allocator's history to a file."""
        self.last_oom_s = last_oom_s
        """Unix time of the last time that memory ran out."""
        self._folder = folder
        self._gather = gather
        self._dump = dump
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._started_s = -float("inf")
        self._writer: threading.Thread | None = None
        self._newest: Path | None = None

    def take(self, trigger: Trigger, wait_s: float = WAIT_S) -> Path | None:
        """Writes a snapshot, unless the last one is younger than a second or still being written.

        Waits at most `wait_s`. Returns the newest snapshot's folder; None where none could be written (yet).
        """
        try:
            writer = self._ensure(trigger)
            if writer is not threading.current_thread():  # memory may run out in the writer itself
                writer.join(wait_s)
        except Exception:
            log.exception("no snapshot (%s) could be started", trigger.reason)
        return self._newest

    def on_failure(self, work: str, error: Exception) -> None:
        """An engine's work failed: a snapshot is taken when memory ran out there."""
        try:
            if is_out_of_memory(error):
                self.take(Trigger(Reason.OOM, f"{work}: {type(error).__name__}", stack_of(error.__traceback__)))
        except Exception:
            log.exception("no snapshot of a failed step")

    def on_refusal(self, device: int, asked_bytes: int, limit_bytes: int, free_bytes: int) -> None:
        """torch's allocator is about to raise: these are the arguments of its out-of-memory observer."""
        try:
            where = stack_of(sys._getframe(1))
            self.take(Trigger(Reason.OOM, "an allocation was refused", where, asked_bytes, limit_bytes, free_bytes))
        except Exception:
            log.exception("no snapshot of a refused allocation")

    def on_trip(self, why: str) -> None:
        """The breaker has opened; does not wait."""
        self.take(Trigger(Reason.BREAKER, why), wait_s=0)

    def _ensure(self, trigger: Trigger) -> threading.Thread:
        """The thread that writes, or wrote, the snapshot of this moment."""
        at_s = self._now()
        with self._lock:
            if trigger.reason is Reason.OOM:
                self.last_oom_s = at_s
            is_young = self._clock() - self._started_s < PAUSE_S
            if self._writer is not None and (is_young or self._writer.is_alive()):
                return self._writer
            self._started_s, self._newest = self._clock(), None
            self._writer = threading.Thread(target=self._run, args=(trigger, at_s), name="snapshot", daemon=True)
            self._writer.start()
            return self._writer

    def _run(self, trigger: Trigger, at_s: float) -> None:
        try:
            path = self._write(trigger, at_s)
            self._newest = path
            log.warning("snapshot (%s): %s", trigger.reason, path)
            if self._dump is not None:
                _dump_beside(path, self._dump)
        except BaseException as error:
            log.warning("no snapshot (%s) could be written: %s: %s", trigger.reason, type(error).__name__, error)
        finally:
            self._tidy()

    def _write(self, trigger: Trigger, at_s: float) -> Path:
        text = self._gather(trigger, at_s).to_json()
        name = report.name_of(at_s, trigger.reason, os.getpid())
        unfinished = self._folder / (UNFINISHED + name)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            unfinished.mkdir(mode=0o700)
            handle = os.open(unfinished / report.REPORT, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            return unfinished.rename(self._folder / name)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise

    def _tidy(self) -> None:
        """Removes what is too many of a reason, and what a dead process left unfinished.

        The one just written stays, also where a clock that was set back makes it the oldest.
        """
        try:
            for name in report.surplus(self._folder, KEPT, self._newest.name if self._newest else None):
                shutil.rmtree(self._folder / name, ignore_errors=True)
            for left in self._folder.glob(f"{UNFINISHED}*"):
                if self._now() - left.lstat().st_mtime > STALE_S:
                    shutil.rmtree(left, ignore_errors=True)
        except OSError as error:
            log.warning("old snapshots could not be removed: %s", error)


def stack_of(place: TracebackType | FrameType | None) -> tuple[str, ...]:
    """``file:line function`` of the innermost frames of a traceback or of a running frame; no values."""
    if place is None:
        return ()
    walk = traceback.walk_tb(place) if isinstance(place, TracebackType) else reversed([*traceback.walk_stack(place)])
    return tuple(f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}" for frame, line in walk)[-FRAMES:]


def _dump_beside(path: Path, dump: Callable[[Path], None]) -> None:
    """The allocator's history; written under another name until it is whole, and dropped when it is too large."""
    unfinished = path / f"{report.PICKLE}.unfinished"
    try:
        dump(unfinished)
        if unfinished.stat().st_size <= MAX_PICKLE_BYTES:
            unfinished.rename(path / report.PICKLE)
    finally:
        unfinished.unlink(missing_ok=True)
