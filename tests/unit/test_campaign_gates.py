import pytest

from loadtests.campaigns import gates
from loadtests.campaigns.campaign import Gates, Kind
from loadtests.campaigns.figures import false_refusals, of_campaign, of_phase, percentiles
from loadtests.users.outcome import End, Outcome
from tests.unit.campaign_kit import outcome, priced, sample

CLEAN = {"leaked_bytes": 0.0}
FULL = [sample(at_s, 100, resident_bytes={"serve": 1000}) for at_s in range(20)]


def failed(outcomes: list[Outcome], asked: Gates = Gates(), **figures: float) -> set[str]:  # noqa: B008
    told = of_campaign(outcomes, FULL) | CLEAN | figures
    return {verdict.gate for verdict in gates.judge(asked, told) if not verdict.holds}


GOOD = outcome(0, vram=priced(20, 20))


def test_a_clean_campaign_passes_every_gate() -> None:
    asked = Gates(max_refusal_p95_s=0.2, max_rss_growth=0.03)
    assert failed([GOOD, outcome(1, End.REFUSED, latency_s=0.1)], asked) == set()


@pytest.mark.parametrize(
    ("bad", "gate"),
    [
        (outcome(1, End.OOM), "oom_count"),
        (outcome(1, End.HUNG), "hung_count"),
        (outcome(1, End.ERROR), "error_count"),
        (outcome(1, End.HUNG, Kind.LEAVER), "hung_count"),
        (outcome(1, vram=priced(20, 21)), "price_overrun_ratio"),
        (outcome(1, End.REFUSED, latency_s=0.5), "refusal_p95_s"),
    ],
)
def test_one_bad_end_fails_its_gate(bad: Outcome, gate: str) -> None:
    assert failed([GOOD, bad], Gates(max_refusal_p95_s=0.2)) == {gate}


def test_a_leaked_byte_fails() -> None:
    assert failed([GOOD], leaked_bytes=1.0) == {"leaked_bytes"}


def test_what_was_not_measured_does_not_hold() -> None:
    verdicts = gates.judge(Gates(), of_campaign([GOOD], FULL))
    assert [verdict.gate for verdict in verdicts if not verdict.holds] == ["leaked_bytes"]
    assert "not measured" in str(next(verdict for verdict in verdicts if not verdict.holds))


def test_a_campaign_without_a_good_answer_proves_nothing() -> None:
    assert "good_count" in failed([outcome(0, End.REFUSED)])


def test_a_process_that_grows_fails_the_soak() -> None:
    grown = [sample(at_s, 0, resident_bytes={"serve": 1000 + 10 * at_s, "llama": 5}) for at_s in range(20)]
    told = of_campaign([GOOD], grown) | CLEAN
    assert [v.gate for v in gates.judge(Gates(max_rss_growth=0.03), told) if not v.holds] == ["rss_growth"]


REFUSED = outcome(
    1, End.REFUSED, status=429, latency_s=0.2, numbers={"price_bytes": 20, "available_bytes": 0, "capacity_bytes": 100}
)


def test_a_refusal_while_the_account_is_full_is_no_false_one() -> None:
    assert false_refusals([REFUSED], FULL) == []


def test_a_refusal_while_there_was_room_and_no_line_is_false() -> None:
    room = [sample(at_s, 60) for at_s in range(5)]
    assert false_refusals([REFUSED], room) == [REFUSED]


def test_a_refusal_beside_a_waiting_line_is_no_false_one() -> None:
    assert false_refusals([REFUSED], [sample(1, 60), sample(2, 60, waiting=3)]) == []


def test_never_is_false_where_the_price_is_within_the_capacity() -> None:
    never = outcome(1, End.REFUSED, status=413, numbers={"price_bytes": 20, "capacity_bytes": 100})
    assert false_refusals([never], FULL) == [never]


def test_shares_and_goodput_leave_out_rude_clients_and_quotes() -> None:
    outcomes = [
        outcome(0, output_tokens=30),
        outcome(1, End.LATE),
        outcome(2, End.LEFT, Kind.LEAVER),
        outcome(3, End.REBUFFED, Kind.GARBAGE),
        outcome(4, kind=Kind.QUOTE),
    ]
    figures = of_phase(outcomes, [sample(1, 50), sample(2, 100)], 10.0)
    assert figures["good_share"] == figures["late_share"] == 0.5
    assert figures["goodput_per_s"] == 0.1
    assert figures["good_tokens_per_s"] == 3.0
    assert figures["account_use"] == 0.75
    assert figures["overload_ratio"] == 1.0


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(1, 101)]
    assert percentiles("x", values) == {"x_p50_s": 50.0, "x_p95_s": 95.0, "x_p99_s": 99.0}
    assert percentiles("x", [7.0])["x_p99_s"] == 7.0
    assert percentiles("x", []) == {}
