from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from common.errors import SettingsError
from common.settings import Settings
from loadtests.campaigns import campaign as campaigns
from loadtests.campaigns.campaign import Campaign, Kind
from loadtests.campaigns.figures import windows
from loadtests.campaigns.schedule import shots
from loadtests.traces import trace

PHASE = {"name": "1x", "duration_s": 60, "time_factor": 1.0}


def campaign(*phases: dict[str, Any], **traffic: Any) -> Campaign:
    return Campaign.model_validate(
        {"about": "a test", "traffic": {"mix": {"chat": 1}, **traffic}, "phases": phases or (PHASE,)}
    )


def test_arrivals_are_those_of_the_trace() -> None:
    calls = [call for call in trace.read("azure_conversation_2023") if call.at_s < 60]
    found = shots(campaign(max_prompt_tokens=100_000, max_output_tokens=100_000))
    assert [(s.at_s, s.prompt_tokens, s.output_tokens) for s in found] == [
        (call.at_s, call.prompt_tokens, call.output_tokens) for call in calls
    ]


def test_a_time_factor_brings_the_same_calls_sooner() -> None:
    slow = shots(campaign())
    fast = shots(campaign(PHASE | {"time_factor": 3.0, "duration_s": 20}))
    assert len(fast) == len(slow)
    assert [s.at_s for s in fast] == pytest.approx([s.at_s / 3 for s in slow])


def test_a_length_factor_shortens_prompts_and_answers_within_their_limits() -> None:
    found = shots(campaign(length_factor=0.1, max_prompt_tokens=50, max_output_tokens=9))
    assert found[0].prompt_tokens == 37
    assert found[0].output_tokens == 4
    assert max(s.prompt_tokens for s in found) == 50
    assert max(s.output_tokens for s in found) == 9
    assert min(s.output_tokens for s in found) >= 1


def test_the_next_phase_begins_after_the_pause_of_the_one_before() -> None:
    two = campaign(PHASE | {"pause_s": 5}, PHASE | {"name": "3x", "time_factor": 3.0})
    found = shots(two)
    assert windows(two) == {"1x": (0.0, 60.0), "3x": (65.0, 125.0)}
    assert min(s.at_s for s in found if s.phase == "3x") >= 65
    assert max(s.at_s for s in found if s.phase == "1x") < 60
    assert [s.number for s in found] == list(range(len(found)))
    assert two.total_s == 125 + 40


def test_a_phase_longer_than_the_trace_plays_it_again() -> None:
    found = shots(campaign(PHASE | {"trace_from_s": 3490, "duration_s": 40}))
    assert found[-1].at_s > 15
    assert [s.at_s for s in found] == sorted(s.at_s for s in found)


def test_kinds_are_drawn_by_their_weights_and_the_same_for_the_same_seed() -> None:
    mixed = campaign(
        PHASE | {"duration_s": 600}, mix={"chat": 3, "segment": 1, "quote": 0}, megapixels={"1": 1, "4": 1}
    )
    found = shots(mixed)
    counts = Counter(shot.kind for shot in found)
    assert counts.keys() == {Kind.CHAT, Kind.SEGMENT}
    assert counts[Kind.CHAT] / len(found) == pytest.approx(0.75, abs=0.05)
    assert {shot.megapixels for shot in found} == {1.0, 4.0}
    assert shots(mixed) == found


@pytest.mark.parametrize("path", sorted(campaigns.FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_committed_campaign_can_be_read_and_sets_what_the_service_knows(path: Path) -> None:
    read = campaigns.load(path.stem)
    assert read.name == path.stem
    Settings.model_validate(read.service)
    assert shots(read)


def test_a_wrong_key_of_a_campaign_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'about = "x"\nphases = [{name = "1x", duration_s = 1, time_factor = 1}]\n'
        "[traffic]\nmix = {chat = 1}\nsped = 2\n"
    )
    with pytest.raises(SettingsError, match=r"traffic\.sped"):
        campaigns.load(str(path))


def test_an_unknown_campaign_names_those_that_are_there() -> None:
    with pytest.raises(SettingsError, match="cpu_mixed"):
        campaigns.load("no_such")
