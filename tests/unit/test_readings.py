import os
from pathlib import Path
from types import SimpleNamespace

from common.readings import GIB, FirstOf, HostCard, Reading, Readings, State, host_memory, host_total_bytes
from common.sections import Card as CardSettings


def test_host_memory_counts_resident_sets_and_forgets_the_dead() -> None:
    total_bytes = 1024 * GIB
    reading = HostCard(total_bytes, lambda: [os.getpid(), 2**22 + 1]).read()
    assert reading is not None
    assert 2**20 < reading.used_bytes < total_bytes
    assert reading.free_bytes + reading.used_bytes == reading.total_bytes == total_bytes


def test_an_overfull_slice_has_nothing_free_rather_than_less_than_nothing() -> None:
    reading = HostCard(4096, lambda: [os.getpid()]).read()
    assert reading is not None
    assert reading.free_bytes == 0


def test_a_reading_grows_stale_then_unknown_and_comes_back() -> None:
    now_s = [0.0]
    answers: list[Reading | None] = [Reading(10, 5, 5, 0, "host"), None, Reading(10, 4, 6, 0, "host")]
    card = SimpleNamespace(name="x", read=lambda: answers.pop(0))
    readings = Readings(card, lambda: now_s[0], poll_s=0.2, stale_polls=5)

    def state_at(at_s: float, *, poll: bool) -> State:
        now_s[0] = at_s
        if poll:
            readings.poll()
        return readings.state

    assert (state_at(0.0, poll=False), readings.latest) == (State.UNKNOWN, None)
    assert state_at(0.0, poll=True) == State.KNOWN
    assert state_at(0.5, poll=True) == State.STALE
    assert state_at(1.1, poll=False) == State.UNKNOWN
    assert readings.latest is not None
    assert readings.latest.free_bytes == 5
    assert state_at(1.1, poll=True) == State.KNOWN


def test_the_host_slice_is_as_set_or_at_most_four_gib() -> None:
    assert host_total_bytes(CardSettings(total=3 * GIB)) == 3 * GIB
    assert 0 < host_total_bytes(CardSettings()) <= 4 * GIB


def test_a_board_without_memory_of_its_own_has_the_hosts(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(
        "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    700 kB\nHugePages_Total: 0\n"
    )
    assert host_memory(meminfo) == Reading(1_024_000, 716_800, 307_200, 0, "unified")
    meminfo.write_text("MemTotal:       1000 kB\n")
    assert host_memory(meminfo) is None
    assert host_memory(tmp_path / "nowhere") is None
    assert (real := host_memory()) is not None
    assert 0 < real.free_bytes < real.total_bytes


def test_the_first_way_that_answers_counts() -> None:
    answers: list[list[Reading | None]] = [
        [None, None, Reading(10, 5, 5, 0, "nvml-v2")],
        [None, Reading(9, 4, 5, 0, "cuda")],
    ]
    ways = [
        SimpleNamespace(name=name, read=lambda told=told: told.pop(0)) for name, told in zip("ab", answers, strict=True)
    ]
    card = FirstOf(tuple(ways))
    assert [reading and reading.source for reading in (card.read(), card.read(), card.read())] == [
        None,
        "cuda",
        "nvml-v2",
    ]
    assert card.name == "a"
