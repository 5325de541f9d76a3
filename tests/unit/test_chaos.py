"""What the chaos script makes of what it saw; the faults themselves are its own business."""

import json
from pathlib import Path

import pytest

from loadtests.chaos import __main__ as chaos
from loadtests.chaos import memory
from loadtests.chaos.load import Answer, Load, tally
from loadtests.chaos.service import Service

LOG = """\
2026-12-01T13:20:43Z I 1 model_lifecycle.cc:472] "loading: unet:1"
2026-12-01T13:20:50Z I 1 model_lifecycle.cc:839] "successfully loaded 'unet'"
2026-12-01T13:20:51Z I 1 model_lifecycle.cc:472] "loading: llama:1"
2026-12-01T13:20:54Z I 1 model_lifecycle.cc:472] "loading: llama:1"
2026-12-01T13:21:24Z I 1 model_lifecycle.cc:839] "successfully loaded 'llama'"
"""


def answer(model: str = "llama", ended_s: float = 10.0, status: int = 200, **changes: object) -> Answer:
    told: dict[str, object] = {"began_s": ended_s - 1, "right": status == 200, "deadline_s": 5.0} | changes
    return Answer(model=model, ended_s=ended_s, status=status, **told)  # type: ignore[arg-type]


def test_the_first_good_answer_is_right_of_that_model_and_was_not_on_its_way() -> None:
    load = Load("http://nowhere")
    load.answers = [
        answer(ended_s=10.2),
        answer("unet", 11.0),
        answer(ended_s=12.0, status=503),
        answer(ended_s=13.0, right=False),
        answer(ended_s=14.0),
    ]
    assert load.first_good_s("llama", 10.0) == 4.0
    assert load.first_good_s("llama", 14.0) != load.first_good_s("llama", 14.0)  # NaN: none came
    assert tally(load.of("llama", 11.0)) == {"200": 2, "503": 1}


def test_a_client_hangs_when_it_waits_longer_than_it_had_said() -> None:
    assert not answer(began_s=4.0).hung
    assert answer(began_s=3.9).hung


def test_a_load_lasts_from_the_start_of_the_process_to_its_readiness(tmp_path: Path) -> None:
    (tmp_path / "tritonserver.log").write_text(LOG, encoding="utf-8")
    service = object.__new__(Service)
    service.state_dir = tmp_path
    assert service.loads_s("unet") == [7.0]
    assert service.loads_s("llama") == [30.0]


def test_the_trace_is_squeezed_and_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens\n0.0,374,44\n10,9000,100\n20,5,5\n", encoding="utf-8")
    monkeypatch.setattr(memory, "TRACES", [tmp_path / "nowhere", file])
    assert memory._trace(3, 2.0, 320) == [(0.0, 320, 20), (1.0, 320, 20), (2.0, 5, 5)]
    assert memory._trace(2, 2.0, 320)[-1] == (2.0, 320, 20)


def test_figures_are_numbers_of_parts_and_results_of_parts_become_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chaos._figures([{"part": "a", "x": 1, "y": float("nan"), "z": {"200": 1}}]) == {"a.x": 1.0, "a.y": -1.0}
    monkeypatch.setenv("OUT", str(tmp_path))
    files = []
    for part in ("a", "b"):
        told: dict[str, object] = {"command": part, "commit": "c", "date": "d", "machine": "m", "versions": {}}
        files.append(tmp_path / part)
        files[-1].write_text(json.dumps(told | {"figures": {f"{part}.x": 1}, "rows": [{"part": part}]}))
    whole = json.loads(chaos._merge("whole", files).read_text(encoding="utf-8"))
    assert whole["figures"] == {"a.x": 1, "b.x": 1}
    assert [row["command"] for row in whole["rows"]] == ["a", "b"]
    assert whole["machine"] == "m"
