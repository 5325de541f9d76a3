from pathlib import Path

import pytest

from common.errors import SettingsError
from common.sections import Admission as AdmissionSettings
from common.wire import LlamaLimits
from frontend.admission import Admission
from frontend.engine_model import Rates
from frontend.ledger import Clock, Ledger
from frontend.simulation import Outcome, Simulation
from frontend.trace import Request, faster, read
from loadtests.strict_line import StrictLine

LIMITS = LlamaLimits(4096, 100, 256, 1000, 10, "")
RATES = Rates(((1, 0.01), (11, 0.02)), 0.0001, step_tokens=101, max_batch=8)


def gate(ledger: Ledger, clock: Clock) -> Admission:
    return Admission(ledger, AdmissionSettings(), clock)


def replay(*requests: Request, timeout_s: float = 30.0, retries: bool = False) -> list[Outcome]:
    return Simulation(LIMITS, RATES, gate, timeout_s, retries).replay(requests)


def test_a_request_alone_takes_its_prompt_and_its_steps() -> None:
    (outcome,) = replay(Request(5.0, 1000, 100, 100))
    assert (outcome.arrived_s, outcome.waited_s, outcome.in_time) == (5.0, 0.0, True)
    assert outcome.held_s == pytest.approx(1000 * 0.0001 + 100 * 0.01)


def test_two_that_decode_together_slow_each_other_down_a_little() -> None:
    first, second = replay(Request(0.0, 0, 100, 100), Request(0.0, 0, 100, 100))
    assert first.held_s == pytest.approx(100 * 0.011, rel=0.02)
    assert second.held_s == pytest.approx(first.held_s, rel=0.02)


def test_a_prompt_that_is_read_slows_down_who_decodes() -> None:
    alone, _ = replay(Request(0.0, 0, 100, 100), Request(30.0, 0, 1, 1))
    beside, _ = replay(Request(0.0, 0, 100, 100), Request(0.1, 1000, 1, 1))
    assert beside.held_s - alone.held_s == pytest.approx(1000 * 0.0001, rel=0.1)


def test_one_that_does_not_fit_waits_for_the_one_that_runs() -> None:
    first, second = replay(Request(0.0, 1900, 200, 200), Request(0.5, 1900, 10, 200))
    assert first.ended_s == pytest.approx(2.19)
    assert second.started_s == first.ended_s


def test_what_has_no_time_left_gives_its_bytes_back_and_counts_as_late() -> None:
    (outcome,) = replay(Request(0.0, 0, 1000, 2000), timeout_s=2.0)
    assert (outcome.in_time, outcome.held_s) == (False, 2.0)


def test_more_than_the_card_or_the_context_holds_never_fits() -> None:
    outcomes = replay(Request(0.0, 2000, 1, 600), Request(0.0, 1, 1, 4096))
    assert [outcome.refused for outcome in outcomes] == ["never_fits", "never_fits"]


def test_who_is_refused_comes_back_when_it_was_told_to() -> None:
    crowd = [Request(0.01 * index, 0, 500, 2400) for index in range(9)]
    outcomes = replay(*crowd, timeout_s=12.0, retries=True)
    refused = [outcome for outcome in outcomes if outcome.refused == "at_once"]
    assert refused
    for outcome in refused:
        assert outcome.again is not None
        assert outcome.again.arrived_s == pytest.approx(outcome.arrived_s + (outcome.retry_after_s or 0))


def test_the_strict_line_lets_nobody_pass() -> None:
    requests = [Request(0.0, 0, 200, 2000), Request(0.1, 0, 10, 2400), Request(0.2, 0, 10, 200)]
    strict = Simulation(LIMITS, RATES, StrictLine).replay(requests)
    assert strict[2].started_s == strict[1].ended_s
    assert replay(*requests)[2].waited_s == 0


def test_a_trace_is_read_from_its_first_arrival_with_the_longest_answer_as_limit(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("# whose it is\narrival_ms,prompt_tokens,output_tokens\n3000,5,9\n1000,7,20\n")
    requests = read(file)
    assert requests == [Request(0.0, 7, 20, 20), Request(2.0, 5, 9, 20)]
    assert read(file, 10) == [Request(0.0, 7, 10, 10), Request(2.0, 5, 9, 10)]
    assert faster(requests, 4)[1].arrival_s == 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arrival_s,prompt_tokens\n1,2\n", "no column 'output_tokens'"),
        ("arrival_s,prompt_tokens,output_tokens\n1,x,3\n", "no CSV of numbers"),
        ("arrival_s,prompt_tokens,output_tokens\n", "holds no requests"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(SettingsError, match=words):
        read(file)
    with pytest.raises(SettingsError, match="cannot read"):
        read(tmp_path / "none.csv")
