import json
from pathlib import Path

import pytest

from common import report
from common.report import REPORT, Reason
from tests.unit.report_kit import made
from tests.unit.test_cli import answering, run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The snapshots of the state directory that the command line reads."""
    monkeypatch.setenv("VRAMGATE_STATE__DIR", str(tmp_path))
    return tmp_path / "snapshots"


def put(folder: Path, at_s: float, text: str | None = None) -> str:
    name = report.name_of(at_s, Reason.DEMAND, 7)
    (folder / name).mkdir(parents=True)
    (folder / name / REPORT).write_text(made(at_s=at_s).to_json() if text is None else text, encoding="utf-8")
    return name


def test_the_list_names_every_snapshot_newest_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = put(folder, 1.0), put(folder, 2.0)
    assert run(monkeypatch, "snapshots", "list") == 0
    shown = capsys.readouterr().out
    assert 0 < shown.index(new) < shown.index(old)


def test_without_a_name_the_newest_that_can_be_read_is_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = put(folder, 1.0), put(folder, 2.0, "half a rep")
    assert run(monkeypatch, "snapshots", "show") == 0
    assert capsys.readouterr().out.startswith(good)
    assert run(monkeypatch, "snapshots", "show", bad) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("name", ["../../etc", "20990101T000000.000Z-oom-1"])
def test_what_is_no_snapshot_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    put(folder, 1.0)
    assert run(monkeypatch, "snapshots", "show", name) == 2
    assert capsys.readouterr().err.startswith("vramgate: there is no snapshot")


def test_an_empty_state_directory_is_said_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "snapshots", "show") == 2
    assert capsys.readouterr().err.startswith("vramgate: there is no snapshot in")
    assert run(monkeypatch, "snapshots", "list") == 0


def test_two_snapshots_are_compared_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = put(folder, 1.0), put(folder, 2.0)
    assert run(monkeypatch, "snapshots", "diff", old, new) == 0
    assert "1 s later" in capsys.readouterr().out
    assert run(monkeypatch, "snapshots", "diff", old, "nothing") == 2
    assert "there is no snapshot 'nothing'" in capsys.readouterr().err


def test_pruning_leaves_the_newest_and_what_is_none_of_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = put(folder, 1.0), put(folder, 3.0)
    (folder / "notes").mkdir()
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    link = report.name_of(2.0, Reason.DEMAND, 7)
    (folder / link).symlink_to(elsewhere)
    assert run(monkeypatch, "snapshots", "prune") == 0
    assert capsys.readouterr().out.split() == ["removed", link, "removed", old]
    assert sorted(path.name for path in folder.iterdir()) == [new, "notes"]
    assert elsewhere.is_dir()
    assert run(monkeypatch, "snapshots", "prune", "--keep", "0") == 0
    assert [path.name for path in folder.iterdir()] == ["notes"]


def test_taking_asks_each_engine_through_the_model_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(200, json.dumps({"control": '{"path": "/state/one"}'}).encode()) as (url, sent):
        monkeypatch.setenv("VRAMGATE_TRITON__URL", url)
        assert run(monkeypatch, "snapshots", "take") == 0
        assert capsys.readouterr().out == "/state/one\n/state/one\n"
        assert run(monkeypatch, "snapshots", "take", "--model", "unet") == 0
    assert [json.loads(body["control"]) for body in sent] == [{"op": "snapshot"}] * 3


def test_taking_without_a_running_service_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "snapshots", "take", "--triton-http-port", "1") == 2
    assert "cannot be reached" in capsys.readouterr().err
