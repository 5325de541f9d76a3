"""Evidence is left when memory runs out, and leaving it never makes things worse."""

import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend import evidence
from backend.snapshot import KEPT, MAX_PICKLE_BYTES, UNFINISHED, Snapshots, Trigger, stack_of
from common import report
from common.report import PICKLE, REPORT, Reason, Report
from tests.unit.report_kit import made

DEMAND = Trigger(Reason.DEMAND)


class Room:
    """A folder of snapshots and the clocks that stamp them."""

    def __init__(self, folder: Path, dump: Callable[[Path], None] | None = None) -> None:
        self.folder = folder
        self.now_s = 1_000_000.0
        self.wall_s = 0.0
        """How far the wall clock is ahead of the other."""
        self.gathered = 0
        self.gather: Callable[[Trigger, float], Report] = self.report_of
        self.snapshots = Snapshots(
            folder,
            lambda trigger, at_s: self.gather(trigger, at_s),
            dump,
            clock=lambda: self.now_s,
            now=lambda: self.now_s + self.wall_s,
        )

    def report_of(self, trigger: Trigger, at_s: float) -> Report:
        self.gathered += 1
        return made(at_s=at_s, reason=trigger.reason, step=trigger.step)

    def later(self, trigger: Trigger = DEMAND) -> Path | None:
        self.now_s += 1.5
        return self.snapshots.take(trigger)


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path / "state" / "snapshots")


def test_a_snapshot_is_private_and_reads_back_as_it_was(room: Room) -> None:
    path = room.snapshots.take(Trigger(Reason.DEMAND, "nothing"))
    assert path is not None
    assert [folder.stat().st_mode & 0o777 for folder in (room.folder, path)] == [0o700, 0o700]
    assert (path / REPORT).stat().st_mode & 0o777 == 0o600
    assert report.read(path) == made(at_s=1_000_000.0, reason=Reason.DEMAND, step="nothing")


def test_a_storm_of_1000_trips_leaves_few_folders_and_writes_once_a_second(room: Room) -> None:
    began_s = room.now_s
    for number in range(1000):
        room.now_s += 0.06
        room.snapshots.on_trip(f"trip {number}")
        room.snapshots.take(Trigger(Reason.OOM))
    assert 30 < room.gathered <= room.now_s - began_s
    assert len(list(room.folder.iterdir())) <= KEPT * len(Reason)
    for reason in (Reason.BREAKER, Reason.OOM):
        assert len(report.names(room.folder, reason)) <= KEPT


def test_the_newest_of_each_reason_stay(room: Room) -> None:
    oom = [room.later(Trigger(Reason.OOM)) for _ in range(2)]
    demand = [room.later() for _ in range(KEPT + 2)]
    stay = [path.name for path in (*oom, *demand[-KEPT:]) if path]
    assert report.names(room.folder) == stay[::-1]


def test_a_clock_that_was_set_back_does_not_cost_the_new_snapshot(room: Room) -> None:
    for _ in range(KEPT):
        room.later()
    room.wall_s -= 86_400
    path = room.later()
    assert path is not None
    assert report.read(path).at_s < room.now_s
    assert len(report.names(room.folder)) == KEPT


def test_within_a_second_the_last_snapshot_is_the_answer(room: Room) -> None:
    first = room.snapshots.take(DEMAND)
    room.now_s += 0.9
    assert room.snapshots.take(Trigger(Reason.OOM)) == first
    assert room.snapshots.last_oom_s == room.now_s


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow: the kernel itself refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_the_snapshot_and_nothing_else(room: Room) -> None:
    with full_disk():
        assert room.snapshots.take(DEMAND) is None
    assert list(room.folder.iterdir()) == []
    assert room.later() is not None


def test_a_folder_that_cannot_be_made_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert Room(tmp_path / "file" / "snapshots").snapshots.take(DEMAND) is None


@pytest.mark.parametrize("fault", [MemoryError(), OSError("gone"), SystemExit(1)])
def test_an_engine_that_cannot_be_asked_raises_nothing(room: Room, fault: BaseException) -> None:
    def fail(trigger: Trigger, at_s: float) -> Report:
        raise fault

    room.gather = fail
    assert room.snapshots.take(DEMAND) is None
    room.gather = room.report_of
    assert room.later() is not None


def test_a_report_that_grew_too_large_is_not_written(room: Room) -> None:
    room.gather = lambda trigger, at_s: made(summary="x" * report.MAX_REPORT_BYTES)
    assert room.snapshots.take(DEMAND) is None


def test_a_writer_that_hangs_holds_nobody_up(room: Room) -> None:
    gate, arrived = threading.Event(), threading.Event()

    def hang(trigger: Trigger, at_s: float) -> Report:
        arrived.set()
        gate.wait()
        return room.report_of(trigger, at_s)

    room.gather = hang
    assert room.snapshots.take(DEMAND, wait_s=0.01) is None
    assert arrived.wait(5)
    room.now_s += 100
    assert room.snapshots.take(Trigger(Reason.OOM), wait_s=0.01) is None
    gate.set()
    assert room.snapshots.take(DEMAND) is not None
    assert room.gathered == 1


def test_memory_that_runs_out_in_the_writer_itself_does_not_lock_it_up(room: Room) -> None:
    def starve(trigger: Trigger, at_s: float) -> Report:
        room.snapshots.on_refusal(0, 1, 2, 3)
        return room.report_of(trigger, at_s)

    room.gather = starve
    assert room.snapshots.take(DEMAND) is not None
    assert room.gathered == 1


def test_what_a_dead_process_left_unfinished_is_removed(room: Room) -> None:
    left = room.folder / f"{UNFINISHED}20200101T000000.000Z-oom-1"
    left.mkdir(parents=True)
    room.snapshots.take(DEMAND)
    assert left.exists()
    room.now_s = left.stat().st_mtime + 61
    room.snapshots.take(DEMAND)
    assert not left.exists()


def test_nothing_that_is_no_snapshot_is_ever_removed(room: Room, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    room.folder.mkdir(parents=True)
    (room.folder / "notes").mkdir()
    link = room.folder / "20200101T000000.000Z-demand-1"
    link.symlink_to(outside)
    for _ in range(KEPT + 1):
        room.later()
    assert outside.exists()
    assert (room.folder / "notes").exists()


def test_the_allocators_history_lies_beside_the_report(tmp_path: Path) -> None:
    def dump(file: Path) -> None:
        file.write_bytes(b"history")

    path = Room(tmp_path, dump).snapshots.take(DEMAND)
    assert path is not None
    assert (path / PICKLE).read_bytes() == b"history"


def test_a_history_that_fails_or_is_huge_leaves_the_report_alone(tmp_path: Path) -> None:
    def huge(file: Path) -> None:
        with file.open("wb") as opened:
            opened.truncate(MAX_PICKLE_BYTES + 1)

    def broken(file: Path) -> None:
        file.write_bytes(b"half")
        raise RuntimeError("no history")

    for number, dump in enumerate((huge, broken)):
        path = Room(tmp_path / str(number), dump).snapshots.take(DEMAND)
        assert path is not None
        assert [file.name for file in path.iterdir()] == [REPORT]


def test_only_steps_that_ran_out_of_memory_are_kept(room: Room) -> None:
    room.snapshots.on_failure("a step", ValueError("shapes"))
    assert room.gathered == 0
    try:
        raise torch.OutOfMemoryError("CUDA out of memory")
    except torch.OutOfMemoryError as error:
        room.snapshots.on_failure("a step of 3 sequences", error)
    (name,) = report.names(room.folder)
    assert report.read(room.folder / name).step == "a step of 3 sequences: OutOfMemoryError"


def test_a_stack_names_places_and_no_values() -> None:
    secret = "a prompt"
    (*_, innermost) = stack_of(sys._getframe())
    assert innermost.endswith("test_a_stack_names_places_and_no_values")
    assert secret not in innermost


def test_a_new_start_recalls_its_own_models_last_oom(
    room: Room, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = [made(model="unet"), made(reason=Reason.OOM, step="a batch", model="llama"), made(model="llama")]
    for value in told:
        room.gather = lambda trigger, at_s, value=value: replace(value, at_s=at_s)  # type: ignore[misc]
        room.later(Trigger(value.reason))
    oom_s = room.now_s - 1.5
    newest = report.names(room.folder)[0]
    (room.folder / "20990101T000000.000Z-oom-1").mkdir()
    assert evidence.recall(room.folder, "llama", ()) == oom_s
    assert evidence.recall(room.folder, "unet", ()) is None
    assert evidence.recall(tmp_path / "nothing", "llama", ()) is None
    lines = [record.getMessage() for record in caplog.records if "newest" in record.getMessage()]
    assert len(lines) == 2
    assert newest in lines[0]
    assert any("snapshot skipped" in record.getMessage() for record in caplog.records)


def test_a_new_start_says_what_is_no_longer_warm(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    room.snapshots.take(DEMAND)
    evidence.recall(room.folder, "llama", ("llama/y",))
    assert "was warm for llama/x then, and is for llama/y now" in caplog.text
    caplog.clear()
    evidence.recall(room.folder, "llama", ("llama/x",))
    assert "warm" not in caplog.text


def test_on_a_real_clock_a_thousand_trips_are_one_snapshot_and_hold_nobody_up(tmp_path: Path) -> None:
    taken = threading.Event()

    def gather(trigger: Trigger, at_s: float) -> Report:
        taken.wait(10)
        return made(at_s=at_s, reason=trigger.reason)

    snapshots = Snapshots(tmp_path, gather)
    for number in range(1000):
        snapshots.on_trip(f"trip {number}")  # none of them waits for the writer, which is held up
    taken.set()
    assert snapshots.take(Trigger(Reason.BREAKER)) is not None
    assert len(report.names(tmp_path)) == 1
