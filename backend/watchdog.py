"""The thread that reads the card every poll and keeps the engine's breaker.

Headroom is what the card could still give: NVML's free bytes plus the wholly free segments of this process. The breaker
opens below a third of the margin and closes above two thirds; when it opens, free segments are given back and the card
is read again before anything is refused.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from common.readings import Readings, State
from common.wire import Breaker

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """What one poll of the allocator gave, in bytes."""

    free_segments_bytes: int
    fragmentation_ratio: float


class Watchdog:
    """`look` reads the allocator, `reclaim` gives free segments back; both are called from the watchdog's thread."""

    def __init__(
        self,
        readings: Readings,
        margin_bytes: int,
        look: Callable[[], Look],
        reclaim: Callable[[], int],
        poll_s: float,
    ) -> None:
        self._readings = readings
        self._margin_bytes = margin_bytes
        self._look = look
        self._reclaim = reclaim
        self._poll_s = poll_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self.breaker = Breaker.CLOSED
        self.last_look = Look(0, 0.0)
        self.on_poll: Callable[[], None] = lambda: None
        """Called after every poll of the thread."""

    @property
    def headroom_bytes(self) -> int | None:
        """Bytes the card could still give; None when the last good reading is too old."""
        latest = self._readings.latest
        if latest is None or self._readings.state == State.UNKNOWN:
            return None
        return latest.free_bytes + self.last_look.free_segments_bytes

    @property
    def card_bytes(self) -> int | None:
        """Size of the card; None while it has never answered."""
        latest = self._readings.latest
        return latest.total_bytes if latest is not None else None

    @property
    def fragmentation_ratio(self) -> float:
        """Of the allocator's free bytes at the last poll."""
        return self.last_look.fragmentation_ratio

    @property
    def readings_state(self) -> State:
        """How far the headroom can be trusted."""
        return self._readings.state

    def poll(self) -> None:
        """One look at the card and the allocator, and what follows from it."""
        self._measure()
        if self.breaker == Breaker.CLOSED and self._is_short(self._margin_bytes / 3):
            log.warning(
                "headroom %s below a third of the margin %d: reclaiming", self.headroom_bytes, self._margin_bytes
            )
            self._reclaim()
            self._measure()
            if self._is_short(self._margin_bytes / 3):
                self.breaker = Breaker.OPEN
                log.warning("breaker open: headroom %s bytes", self.headroom_bytes)
        elif self.breaker == Breaker.OPEN and not self._is_short(2 * self._margin_bytes / 3):
            self.breaker = Breaker.CLOSED
            log.warning("breaker closed: headroom %s bytes", self.headroom_bytes)

    def start(self) -> None:
        """Polls from a thread until ``close``."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _measure(self) -> None:
        self._readings.poll()
        self.last_look = self._look()

    def _is_short(self, threshold_bytes: float) -> bool:
        """An unknown headroom is not short: the ledger alone decides then."""
        headroom_bytes = self.headroom_bytes
        return headroom_bytes is not None and headroom_bytes < threshold_bytes

    def _run(self) -> None:
        while not self._closing.wait(self._poll_s):
            try:
                self.poll()
                self.on_poll()
            except Exception:
                log.exception("a watchdog poll failed; the next one goes on")
