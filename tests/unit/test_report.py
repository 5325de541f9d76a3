"""What lies in the state directory is read only where it can be trusted."""

import os
from pathlib import Path

import pytest

from common import report
from common.errors import VramgateError
from common.report import MAX_REPORT_BYTES, REPORT, Reason
from tests.unit.report_kit import made


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    folder = tmp_path / report.name_of(1.0, Reason.OOM, 7)
    folder.mkdir()
    (folder / REPORT).write_text(made().to_json(), encoding="utf-8")
    return folder


def test_a_report_reads_back_as_it_was(snapshot: Path) -> None:
    assert report.read(snapshot) == made()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        "\0\xff",
        '{"at_s": 1}',
        made().to_json().replace('"pid"', '"pod"'),
        made().to_json().replace('"pid": 7', '"pid": 1' + "0" * 400),
        made().to_json().replace('"at_s": 1.0', '"at_s": 1e300', 1),
        made().to_json().replace('"at_s": 1.0', '"at_s": NaN', 1),
    ],
)
def test_a_corrupt_report_is_no_report(snapshot: Path, text: str) -> None:
    (snapshot / REPORT).write_text(text, encoding="latin-1")
    with pytest.raises(VramgateError, match="no report"):
        report.read(snapshot)


def test_a_huge_report_is_not_read(snapshot: Path) -> None:
    os.truncate(snapshot / REPORT, MAX_REPORT_BYTES + 1)
    with pytest.raises(VramgateError, match="no file of at most"):
        report.read(snapshot)


def test_a_link_in_place_of_the_file_or_its_folder_is_not_followed(snapshot: Path) -> None:
    linked = snapshot.with_name(report.name_of(2.0, Reason.OOM, 7))
    linked.symlink_to(snapshot)
    with pytest.raises(VramgateError, match="symbolic link"):
        report.read(linked)
    (snapshot / REPORT).rename(snapshot / "other")
    (snapshot / REPORT).symlink_to(snapshot / "other")
    with pytest.raises(VramgateError):
        report.read(snapshot)


def test_a_pipe_in_place_of_the_file_holds_nobody_up(snapshot: Path) -> None:
    (snapshot / REPORT).unlink()
    os.mkfifo(snapshot / REPORT)
    with pytest.raises(VramgateError, match="no file"):
        report.read(snapshot)


def test_another_users_report_is_not_read(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(VramgateError, match="belongs to user"):
        report.read(snapshot)


def test_what_is_beyond_the_newest_of_each_reason_is_surplus(tmp_path: Path) -> None:
    oom = [report.name_of(at_s, Reason.OOM, 5) for at_s in (1.0, 2.0, 3.0)]
    demand = [report.name_of(4.0, Reason.DEMAND, 5)]
    for name in (*oom, *demand, "notes"):
        (tmp_path / name).mkdir()
    assert report.surplus(tmp_path, 2) == [oom[0]]
    assert report.surplus(tmp_path, 1, newest=oom[0]) == [oom[2], oom[1]]
    assert report.surplus(tmp_path, 0) == [*oom[::-1], *demand]
    assert report.surplus(tmp_path / "nowhere", 0) == []


def test_one_bad_snapshot_hides_no_other(snapshot: Path) -> None:
    bad = snapshot.with_name(report.name_of(2.0, Reason.DEMAND, 7))
    bad.mkdir()
    told = dict(report.readable(snapshot.parent))
    assert list(told) == [bad.name, snapshot.name]
    assert isinstance(told[bad.name], VramgateError)
    assert told[snapshot.name] == made()


def test_names_sort_by_time_and_strangers_are_left_out(tmp_path: Path) -> None:
    ours = [report.name_of(at_s, Reason.OOM, 5) for at_s in (1.9, 2.0, 2.001, 1e9)]
    for name in (*ours, "notes", "20200101T000000.000Z-other-1", ".unfinished-" + ours[0]):
        (tmp_path / name).mkdir()
    assert report.names(tmp_path) == ours[::-1]
    assert report.names(tmp_path, Reason.DEMAND) == []
    assert report.names(tmp_path / "nowhere") == []


def test_a_report_too_large_to_be_read_back_is_not_made() -> None:
    with pytest.raises(VramgateError, match="are allowed"):
        made(summary="x" * MAX_REPORT_BYTES).to_json()
