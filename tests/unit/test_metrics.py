import random
import string
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.errors import REQUEST_ERRORS
from common.wire import Breaker, Statement
from estimator.price import Line, Price
from frontend.ledger import Ledger
from frontend.metrics import Metrics, route_label
from tests.unit.books import Clock
from tests.unit.fake_bank import status

FAMILIES = {
    "vram_used_ratio",
    "vram_fragmentation_ratio",
    "price_error_ratio",
    "price_widened_ratio",
    "queue_wait_seconds",
    "retry_after_ratio",
    "refusals",
    "oom",
    "requests",
    "request_seconds",
    "time_to_first_token_seconds",
    "tokens",
    "pixels",
    "waiting_requests",
    "leases",
    "account_capacity_bytes",
    "account_held_bytes",
    "account_unleased_bytes",
    "account_overdraft_bytes",
    "drift_bytes",
    "overrun_bytes",
    "engine_ready",
    "engine_restarts",
    "engine_standing_bytes",
    "breaker_open",
    "breaker_open_seconds",
    "readings_known",
    "journal_dropped_entries",
    "last_oom_timestamp_seconds",
}


def values(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Name and label values, by the label's name -> value."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def statement(**changes: Any) -> Statement:
    told: dict[str, Any] = {
        "lease": "l",
        "model": "llama",
        "quoted_bytes": 100,
        "held_bytes": 100,
        "process_peak_bytes": 0,
    }
    return Statement(**(told | changes))


def test_every_family_is_there_from_the_start() -> None:
    text = Metrics().render().decode()
    told = {family.name.removeprefix("vramgate_") for family in text_string_to_metric_families(text)}
    assert told >= FAMILIES


def test_two_registries_do_not_share_anything() -> None:
    one, other = Metrics(), Metrics()
    one.refused("rate_limit_exceeded")
    assert values(one)["vramgate_refusals_total", "rate_limit_exceeded"] == 1
    assert values(other)["vramgate_refusals_total", "rate_limit_exceeded"] == 0


def test_no_client_can_add_a_series() -> None:
    metrics, dice = Metrics(), random.Random(1)

    def noise(_: int) -> str:
        return "/" + "".join(dice.choices(string.ascii_letters + "/{}.:", k=dice.randint(1, 30)))

    def feed(word: str) -> None:
        metrics.request_finished(word, word, word, 0.1)
        metrics.request_finished("llama", f"/v2{word}", "ok", 0.1)
        metrics.request_finished("llama", f"/v1{word}", "ok", 0.1)
        metrics.refused(word)
        metrics.price_error(word, 1, 1)
        metrics.settled(statement(lease=word, model=word, rung=word))
        metrics.observe_drift(word, 1)
        metrics.observe_engine(replace(status("llama"), model=word, device=word, boot_id=word, totals={word: 1}))

    feed("/x")
    before = values(metrics).keys()
    for number in range(10_000):
        feed(noise(number))
    assert values(metrics).keys() == before


def test_an_oom_before_the_frontend_came_is_told_and_none_is_no_series() -> None:
    metrics = Metrics()
    metrics.observe_engine(status("unet"))
    metrics.observe_engine(status("llama", last_oom_s=1234.5))
    told = values(metrics)
    assert told[("vramgate_last_oom_timestamp_seconds", "llama")] == 1234.5
    assert ("vramgate_last_oom_timestamp_seconds", "unet") not in told


@pytest.mark.parametrize(
    ("route", "label"),
    [
        ("/v1/completions", "/v1/completions"),
        ("/v2/models/{model}/infer", "/v2/infer"),
        ("/v2/models/{model}/versions/{version}/generate_stream", "/v2/generate_stream"),
        ("/v2/health/ready", "/v2"),
        ("/v2", "/v2"),
        ("/v2x/infer", "other"),
        ("/v1/completions/", "other"),
    ],
)
def test_a_route_has_one_label(route: str, label: str) -> None:
    assert route_label(route) == label


def test_every_error_code_is_a_reason_and_an_outcome_of_its_own() -> None:
    metrics = Metrics()
    codes = {error.kind.code for error in REQUEST_ERRORS}
    for code in codes:
        metrics.refused(code)
        metrics.request_finished("llama", "/predict", code, 0.1)
    seen = values(metrics)
    assert {key[1] for key in seen if key[0] == "vramgate_refusals_total"} == codes
    assert {key[2] for key in seen if key[0] == "vramgate_requests_total"} == codes


def test_a_statement_counts_what_was_done() -> None:
    metrics = Metrics()
    metrics.settled(statement(prompt_tokens=5, output_tokens=7))
    metrics.settled(statement(output_tokens=1, rung="preempt"))
    metrics.settled(statement(model="unet", pixels=600))
    seen = values(metrics)
    assert seen["vramgate_tokens_total", "prompt"] == 5
    assert seen["vramgate_tokens_total", "output"] == 8
    assert seen["vramgate_pixels_total",] == 600


def test_an_engines_rungs_are_counted_once_over_looks_and_restarts() -> None:
    metrics = Metrics()
    for boot_id, count in (("a", 2), ("a", 2), ("a", 5), ("b", 1), ("b", 1)):
        metrics.observe_engine(status("llama", boot_id=boot_id, totals={"oom_preempt": count, "steps": 9}))
    seen = values(metrics)
    assert seen["vramgate_oom_total", "llama", "preempt"] == 6
    assert sum(count for key, count in seen.items() if key[0] == "vramgate_oom_total") == 6


def test_an_exact_price_stands_in_the_bucket_that_ends_at_one() -> None:
    metrics = Metrics()
    for used_bytes, quoted_bytes in ((100, 100), (50, 100), (101, 100), (300, 100), (7, 0)):
        metrics.price_error("llama", used_bytes, quoted_bytes)
    seen = values(metrics)
    buckets = {key[1]: seen[key] for key in seen if key[0] == "vramgate_price_error_ratio_bucket"}
    assert (buckets["0.99"], buckets["1.0"], buckets["1.01"], buckets["+Inf"]) == (1, 2, 3, 4)


def test_the_error_of_retry_after_is_the_real_time_over_the_told_one() -> None:
    metrics = Metrics()
    metrics.looked_back(predicted_s=10.0, real_s=12.0)
    seen = values(metrics)
    assert (seen["vramgate_retry_after_ratio_sum",], seen["vramgate_retry_after_ratio_count",]) == (1.2, 1)


def test_accounts_follow_the_ledger_down_to_zero() -> None:
    ledger, metrics = Ledger(Clock()), Metrics()
    ledger.set_capacity("llama.pages", 100)
    lease = ledger.reserve("llama", Price((Line("llama.pages", 80, "x"),)), "boot", 1)
    ledger.start(lease.id)
    ledger.set_capacity("llama.pages", 60)
    metrics.observe_ledger(ledger)
    seen = values(metrics)
    assert seen["vramgate_account_held_bytes", "llama.pages"] == 80
    assert seen["vramgate_account_capacity_bytes", "llama.pages"] == 60
    assert seen["vramgate_account_overdraft_bytes", "llama.pages"] == 20
    assert (seen["vramgate_leases", "running"], seen["vramgate_leases", "reserved"]) == (1, 0)
    ledger.settle(lease.id, statement(quoted_bytes=80, held_bytes=90))
    metrics.observe_ledger(ledger)
    seen = values(metrics)
    assert seen["vramgate_account_held_bytes", "llama.pages"] == 0
    assert seen["vramgate_leases", "running"] == 0
    assert seen["vramgate_overrun_bytes",] == 10


def test_the_time_with_an_open_breaker_adds_up() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    for now_s, breaker in ((0, "closed"), (1, "open"), (3, "open"), (4, "closed"), (9, "closed"), (10, "open")):
        clock.now_s = now_s
        metrics.observe_engine(status("llama", breaker=Breaker(breaker)))
    seen = values(metrics)
    assert seen["vramgate_breaker_open_seconds_total", "llama"] == 3
    assert seen["vramgate_breaker_open", "llama"] == 1


def test_the_breaker_of_an_engine_that_is_gone_does_not_stay_open() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.observe_engine(status("llama", breaker=Breaker.OPEN))
    clock.now_s = 2
    metrics.engine_lost("llama")
    clock.now_s = 100
    metrics.engine_lost("llama")
    seen = values(metrics)
    assert seen["vramgate_breaker_open_seconds_total", "llama"] == 2
    assert seen["vramgate_breaker_open", "llama"] == 0


@pytest.mark.parametrize(("headroom_bytes", "card_bytes"), [(None, 1000), (250, None), (250, 0)])
def test_an_unknown_reading_is_not_a_number(headroom_bytes: int | None, card_bytes: int | None) -> None:
    metrics = Metrics()
    metrics.observe_engine(status("llama"))
    assert values(metrics)["vramgate_vram_used_ratio", "llama"] == 0.75
    metrics.observe_engine(status("llama", headroom_bytes=headroom_bytes, card_bytes=card_bytes))
    seen = values(metrics)
    ratio = seen["vramgate_vram_used_ratio", "llama"]
    assert ratio != ratio
    assert seen["vramgate_readings_known", "llama"] == 0
