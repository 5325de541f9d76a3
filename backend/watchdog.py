"""The thread that reads the card every poll and keeps the engine's breaker.

Headroom is what the card could still give: NVML's free bytes plus the wholly free segments of this process. The breaker
opens below a third of the margin and closes above two thirds. Before it opens, and about once a second while it is
open, free segments are given back and the card is read again: what only lay in a cache never keeps it open. When it is
still open at the next reading, what can leave the card leaves it (the pool of canvases), and comes back once the card
has room for it beside the margin.

No work is cancelled: the pools are fixed, so no request's end gives a byte back to the card. Its pages and strips go
back to their pool, a step's activations end with the step. Work that finds no memory is answered by the ladder.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from common.readings import Reading, Readings, State
from common.report import Moment
from common.wire import Breaker

log = logging.getLogger(__name__)

RECLAIM_POLLS = 5
"""An open breaker tries again after so many polls; each try may hold up what still runs."""
REMEMBERED_S = 60.0
MOMENTS = 400
"""Looks kept of that time at the most, however often the card is read."""


@dataclass(frozen=True)
class Look:
    """What one poll of the allocator gave, in bytes."""

    free_segments_bytes: int
    fragmentation_ratio: float
    own_bytes: int = 0
    """Held of the card by this process."""


class Movable(Protocol):
    """What can leave the card; see :class:`backend.engine.Engine`."""

    @property
    def away_bytes(self) -> int:
        """What has left."""

    def retreat(self) -> None:
        """Has it leave; does not wait."""

    def advance(self) -> None:
        """Has it come back; does not wait."""


class Watchdog:
    """`look` reads the allocator, `reclaim` gives free segments back; both are called from the watchdog's thread."""

    def __init__(
        self,
        readings: Readings,
        margin_bytes: int,
        look: Callable[[], Look],
        reclaim: Callable[[], int],
        poll_s: float,
        clock: Callable[[], float] = time.monotonic,
        movable: Movable | None = None,
    ) -> None:
        self.margin_bytes = margin_bytes
        self._readings = readings
        self._look = look
        self._reclaim = reclaim
        self._poll_s = poll_s
        self._clock = clock
        self._moments: deque[Moment] = deque(maxlen=MOMENTS)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._movable = movable
        self._polls = 0
        """Since the breaker has last opened or closed."""
        self.breaker = Breaker.CLOSED
        self.last_look = Look(0, 0.0)
        self.on_poll: Callable[[], None] = lambda: None
        """Called after every poll of the thread."""
        self.on_trip: Callable[[str], None] = lambda why: None
        """Called once the breaker is open, with the reason; must not wait."""

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

    @property
    def reading(self) -> Reading | None:
        """The newest good reading of the card."""
        return self._readings.latest

    def moments(self) -> tuple[Moment, ...]:
        """What was seen in the last minute, oldest first."""
        since_s = self._clock() - REMEMBERED_S
        return tuple(moment for moment in self._moments.copy() if moment.at_s >= since_s)

    def poll(self) -> None:
        """One look at the card and the allocator, and what follows from it."""
        self._measure()
        self._polls += 1
        was_closed = self.breaker == Breaker.CLOSED
        if was_closed:
            self._guard()
            self._bring_back()
        else:
            self._recover()
        self._remember()
        if was_closed and self.breaker == Breaker.OPEN:
            self.on_trip(f"headroom {self.headroom_bytes} bytes, below a third of the margin {self.margin_bytes}")

    def start(self) -> None:
        """Polls from a thread until ``close``."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _guard(self) -> None:
        short_bytes = self.margin_bytes / 3
        if not self._is_short(short_bytes):
            return
        log.warning("headroom %s below a third of the margin %d: reclaiming", self.headroom_bytes, self.margin_bytes)
        self._reclaim()
        self._measure()
        if self._is_short(short_bytes):
            self.breaker, self._polls = Breaker.OPEN, 0
            log.warning("breaker open: headroom %s bytes", self.headroom_bytes)

    def _recover(self) -> None:
        short_bytes = 2 * self.margin_bytes / 3
        if self._is_short(short_bytes) and self._polls == 1 and self._movable is not None:
            self._movable.retreat()
        if self._is_short(short_bytes) and self._polls % RECLAIM_POLLS == 0:
            self._reclaim()
            self._measure()
        if not self._is_short(short_bytes):
            self.breaker, self._polls = Breaker.CLOSED, 0
            log.warning("breaker closed: headroom %s bytes", self.headroom_bytes)

    def _bring_back(self) -> None:
        """Not at once: whoever has just left memory free may take it again."""
        away_bytes = self._movable.away_bytes if self._movable is not None else 0
        headroom_bytes = self.headroom_bytes
        if not away_bytes or self._polls % RECLAIM_POLLS or headroom_bytes is None:
            return
        if headroom_bytes - away_bytes >= 2 * self.margin_bytes / 3 and self._movable is not None:
            self._movable.advance()

    def _measure(self) -> None:
        self._readings.poll()
        self.last_look = self._look()

    def _remember(self) -> None:
        now_s, headroom_bytes, reading = self._clock(), self.headroom_bytes, self.reading
        if self._moments and now_s - self._moments[-1].at_s < REMEMBERED_S / MOMENTS:
            return
        moment = Moment(
            at_s=now_s,
            headroom_bytes=headroom_bytes,
            used_bytes=reading.used_bytes if reading is not None and headroom_bytes is not None else None,
            own_bytes=self.last_look.own_bytes,
            fragmentation_ratio=self.last_look.fragmentation_ratio,
            breaker=self.breaker,
        )
        self._moments.append(moment)

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
