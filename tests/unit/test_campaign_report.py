import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import SettingsError
from loadtests.reports import report
from loadtests.reports.raw import Run
from loadtests.users.outcome import End, Outcome
from tests.unit.campaign_kit import CAMPAIGN, outcome, priced, sample

ABOUT = {"command": "python -m x", "commit": "0" * 40, "date": "today", "machine": "a machine", "versions": {"a": "1"}}


def left_behind(folder: Path, name: str, outcomes: list[Outcome], **told: Any) -> None:
    """What a run of that contestant leaves in `folder`."""
    run = {"name": name, "says": f"<{name}>", "load_s": 1.0, "began_unix_s": 999.0, "about": ABOUT, "settings": {}}
    (folder / name).mkdir(parents=True)
    (folder / name / "run.json").write_text(json.dumps(run | told))
    samples = [sample(at_s, 50, resident_bytes={"llama engine": 10**6}) for at_s in range(10)]
    for file, lines in (("requests", outcomes), ("samples", samples)):
        text = "".join(line.to_json() + "\n" for line in lines)
        (folder / name / f"{file}.jsonl.gz").write_bytes(gzip.compress(text.encode()))


OURS = [outcome(number, vram=priced(20, 10 + number, 5), ttft_s=0.5, gaps_s=[0.1] * 4) for number in range(8)]
REFUSED = outcome(8, End.REFUSED, status=429, code="rate_limit_exceeded", message="12 of 1,300 left for <b>")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("campaign")
    left_behind(tmp_path / "raw", "vramgate", [*OURS, REFUSED], leaked_bytes=0, oom_counted=0)
    left_behind(tmp_path / "raw", "semaphore", [*OURS[:2], outcome(9, End.OOM, message="CUDA out of memory")])
    verdicts = report.write(CAMPAIGN, [tmp_path / "raw"], tmp_path)
    assert {verdict.gate for verdict in verdicts if not verdict.holds} == set()
    return tmp_path


def test_the_figures_name_contestants_and_phases(written: Path) -> None:
    told = json.loads((written / "mine.json").read_text())
    figures = told["figures"]
    assert figures["oom_share"] == 0
    assert figures["semaphore.oom_share"] == pytest.approx(1 / 3)
    assert figures["goodput_ratio_1x"] == pytest.approx(4.0)
    assert figures["ttft_p95_s_1x"] == 0.5
    assert figures["account_use_1x"] == 0.5
    assert told["command"] == "python -m x"
    assert told["machine"] == "a machine"


def test_the_table_has_a_row_for_every_contestant_and_says_what_failed(written: Path) -> None:
    text = (written / "mine.md").read_text()
    assert "| vramgate | 1x | 88.9 % |" in text
    assert "| semaphore | 1x | 66.7 % |" in text
    assert "| leaked_bytes | 0 | 0 | holds |" in text


def test_the_page_needs_no_other_file_and_escapes_what_services_said(written: Path) -> None:
    text = (written / "mine.html").read_text()
    assert text.count("data:image/png;base64,") >= 8
    assert "http" not in text.replace("http-equiv", "")
    assert "&lt;b&gt;" in text
    assert "<b> left" not in text


def test_an_out_of_memory_that_no_client_saw_fails_the_gate(tmp_path: Path) -> None:
    left_behind(tmp_path, "vramgate", OURS, leaked_bytes=0, oom_counted=2)
    verdicts = report.judge(CAMPAIGN, [Run.read(tmp_path / "vramgate")])
    assert [verdict.gate for verdict in verdicts if not verdict.holds] == ["oom_count"]


def test_a_service_that_is_gone_at_the_end_has_no_gate_passed_for_it(tmp_path: Path) -> None:
    left_behind(tmp_path, "vramgate", OURS, leaked_bytes=-1, oom_counted=None)
    verdicts = report.judge(CAMPAIGN, [Run.read(tmp_path / "vramgate")])
    assert {verdict.gate for verdict in verdicts if not verdict.holds} == {"oom_count", "leaked_bytes"}


def test_refusals_are_counted_by_their_reason_without_its_numbers(tmp_path: Path) -> None:
    other = outcome(9, End.REFUSED, status=429, code="rate_limit_exceeded", message="7 of 45.5 left for <b>")
    left_behind(tmp_path, "vramgate", [REFUSED, other])
    assert Run.read(tmp_path / "vramgate").refusals() == {
        ("chat: refused", 429, "rate_limit_exceeded # of # left for <b>"): 2
    }


def test_outcomes_and_samples_come_back_as_they_were(tmp_path: Path) -> None:
    left_behind(tmp_path, "vramgate", OURS)
    read = Run.read(tmp_path / "vramgate")
    assert read.outcomes == OURS
    assert read.samples[3] == sample(3, 50, resident_bytes={"llama engine": 10**6})


def test_a_folder_without_runs_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=str(tmp_path)):
        report.write(CAMPAIGN, [tmp_path], tmp_path)
