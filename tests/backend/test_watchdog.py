import threading
from collections.abc import Callable

from backend.watchdog import MOMENTS, RECLAIM_POLLS, REMEMBERED_S, Look, Watchdog
from common.readings import Reading, Readings
from common.wire import Breaker

TOTAL_BYTES, MARGIN_BYTES = 1000, 90


class Bench:
    """A card, an allocator and a clock that the test sets by hand."""

    name = "bench"

    def __init__(self) -> None:
        self.now_s = 0.0
        self.free_bytes: int | None = TOTAL_BYTES
        self.cached_bytes = 0
        self.heap_bytes = 0
        """Freed, still resident, and in no figure of the allocator."""
        self.away_bytes = 0
        self.moves: list[str] = []
        readings = Readings(self, lambda: self.now_s, poll_s=0.2, stale_polls=5)
        self.watchdog = Watchdog(
            readings, MARGIN_BYTES, self.look, self.reclaim, poll_s=0.2, clock=lambda: self.now_s, movable=self
        )

    def retreat(self) -> None:
        self.moves.append("retreat")
        self.away_bytes, self.free_bytes = 40, (self.free_bytes or 0) + 40

    def advance(self) -> None:
        self.moves.append("advance")
        self.away_bytes, self.free_bytes = 0, (self.free_bytes or 0) - 40

    def polls(self, count: int) -> Breaker:
        """So many polls later, with nothing changed from outside."""
        for _ in range(count):
            self.breaker_at(self.free_bytes, self.cached_bytes)
        return self.watchdog.breaker

    def read(self) -> Reading | None:
        if self.free_bytes is None:
            return None
        return Reading(TOTAL_BYTES, self.free_bytes, TOTAL_BYTES - self.free_bytes, 0, "host")

    def look(self) -> Look:
        return Look(self.cached_bytes, 0.0)

    def reclaim(self) -> int:
        given_bytes, self.cached_bytes = self.cached_bytes + self.heap_bytes, 0
        self.heap_bytes = 0
        if self.free_bytes is not None:
            self.free_bytes += given_bytes
        return given_bytes

    def breaker_at(self, free_bytes: int | None, cached_bytes: int = 0) -> Breaker:
        self.now_s += 0.2
        self.free_bytes, self.cached_bytes = free_bytes, cached_bytes
        self.watchdog.poll()
        return self.watchdog.breaker


def test_the_breaker_opens_below_a_third_and_closes_above_two_thirds_of_the_margin() -> None:
    bench = Bench()
    assert bench.breaker_at(31) == Breaker.CLOSED
    assert bench.breaker_at(29) == Breaker.OPEN
    assert bench.breaker_at(59) == Breaker.OPEN
    assert bench.breaker_at(61) == Breaker.CLOSED
    assert bench.breaker_at(31) == Breaker.CLOSED


def test_memory_the_allocator_only_caches_never_opens_the_breaker() -> None:
    bench = Bench()
    assert bench.breaker_at(5, cached_bytes=500) == Breaker.CLOSED
    assert bench.watchdog.headroom_bytes == 505


def test_what_was_freed_while_the_breaker_was_open_does_not_keep_it_open() -> None:
    bench = Bench()
    assert bench.breaker_at(5) == Breaker.OPEN
    bench.heap_bytes = 500
    assert Breaker.CLOSED in [bench.breaker_at(5) for _ in range(RECLAIM_POLLS)]


def test_an_open_breaker_does_not_reclaim_at_every_poll() -> None:
    bench = Bench()
    assert bench.breaker_at(5) == Breaker.OPEN
    bench.heap_bytes = 500
    assert [bench.breaker_at(5) for _ in range(RECLAIM_POLLS - 1)] == [Breaker.OPEN] * (RECLAIM_POLLS - 1)


def test_a_card_that_stops_answering_is_unknown_and_does_not_latch_the_breaker() -> None:
    bench = Bench()
    assert bench.breaker_at(29) == Breaker.OPEN
    for _ in range(6):
        bench.breaker_at(None)
    assert bench.watchdog.headroom_bytes is None
    assert bench.watchdog.breaker == Breaker.CLOSED


def test_the_thread_polls_and_a_failing_poll_does_not_end_it() -> None:
    bench, polled = Bench(), threading.Event()

    def fail() -> None:
        raise OSError("a reading failed")

    faults: list[Callable[[], None]] = [fail, polled.set]
    watchdog = Watchdog(Readings(bench, lambda: 0.0, 0.001, 5), MARGIN_BYTES, bench.look, bench.reclaim, 0.001)
    watchdog.on_poll = lambda: faults.pop(0)() if faults else None
    watchdog.start()
    assert polled.wait(5.0)
    watchdog.close()


def test_the_last_minute_is_remembered_and_no_more() -> None:
    bench = Bench()
    for free_bytes in range(1000):
        bench.breaker_at(free_bytes)
    moments = bench.watchdog.moments()
    assert moments[-1].headroom_bytes == 999
    assert moments[-1].used_bytes == 1
    assert bench.now_s - moments[0].at_s <= REMEMBERED_S
    assert 299 <= len(moments) <= 301


def test_a_card_that_is_read_very_often_is_remembered_for_a_minute_all_the_same() -> None:
    bench = Bench()
    for _ in range(40_000):
        bench.now_s += 0.002
        bench.watchdog.poll()
    moments = bench.watchdog.moments()
    assert len(moments) <= MOMENTS
    assert moments[-1].at_s - moments[0].at_s > REMEMBERED_S - 2


def test_what_was_unknown_is_remembered_as_unknown() -> None:
    bench = Bench()
    for _ in range(7):
        bench.breaker_at(None)
    assert (bench.watchdog.moments()[-1].headroom_bytes, bench.watchdog.moments()[-1].used_bytes) == (None, None)


def test_an_opening_breaker_tells_its_reason_once() -> None:
    bench, told = Bench(), list[str]()
    bench.watchdog.on_trip = told.append
    for free_bytes in (500, 29, 20, 59, 20):
        bench.breaker_at(free_bytes)
    assert told == ["headroom 29 bytes, below a third of the margin 90"]
    bench.breaker_at(61)
    bench.breaker_at(5)
    assert len(told) == 2


def test_what_can_leave_the_card_leaves_it_only_when_reclaiming_did_not_help() -> None:
    bench = Bench()
    assert bench.breaker_at(5, cached_bytes=500) == Breaker.CLOSED
    assert bench.breaker_at(5) == Breaker.OPEN
    assert bench.moves == []
    assert bench.polls(1) == Breaker.OPEN
    assert bench.moves == ["retreat"]
    bench.breaker_at(5)
    assert bench.polls(20) == Breaker.OPEN
    assert bench.moves == ["retreat"]


def test_what_has_left_comes_back_when_there_is_room_for_it_beside_the_margin() -> None:
    bench = Bench()
    bench.breaker_at(25)
    bench.polls(3)
    assert (bench.watchdog.breaker, bench.moves) == (Breaker.CLOSED, ["retreat"])
    bench.polls(20)
    assert bench.moves == ["retreat"]
    bench.breaker_at(101)
    bench.polls(RECLAIM_POLLS)
    assert (bench.watchdog.breaker, bench.moves) == (Breaker.CLOSED, ["retreat", "advance"])
    bench.polls(20)
    assert bench.moves == ["retreat", "advance"]


def test_an_idle_service_that_is_short_of_its_own_memory_reopens_within_two_seconds() -> None:
    bench = Bench()
    assert bench.breaker_at(5) == Breaker.OPEN
    bench.heap_bytes = 500
    since_s = bench.now_s
    while bench.polls(1) == Breaker.OPEN:
        assert bench.now_s - since_s <= 2.0
