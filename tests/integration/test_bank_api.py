"""Quotes, the ledger, statements, health and metrics of the whole service."""

import time
import urllib.request
from typing import Any

import httpx
import pytest

from tests.integration.running import Running

TEXT = {"model": "llama", "prompt": "Once upon a time", "max_tokens": 300}
IMAGE = {"model": "unet", "height": 500, "width": 700}


def post(service: Running, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{service.url}{path}", json=body, timeout=60)


def account(service: Running, name: str) -> dict[str, Any]:
    return next(one for one in service.get("/v1/ledger")["accounts"] if one["name"] == name)


def samples(service: Running) -> dict[str, float]:
    """The sample lines of ``/metrics``: name and labels -> value."""
    with urllib.request.urlopen(f"{service.url}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if not x.startswith("#"))}


@pytest.mark.parametrize("body", [TEXT, IMAGE])
def test_a_quote_says_every_line_its_reason_and_the_verdict(service: Running, body: dict[str, Any]) -> None:
    told = post(service, "/v1/quote", body).json()
    assert told["verdict"] == "admit"
    assert told["lines"]
    assert all(line["bytes"] > 0 and line["why"] for line in told["lines"])


def test_a_quote_is_what_the_request_then_holds(service: Running) -> None:
    lines = post(service, "/v1/quote", TEXT).json()["lines"]
    quoted_bytes = sum(line["bytes"] for line in lines if line["account"] == "llama.pages")
    body = TEXT | {"stream": True, "seed": 1}
    with httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=60) as stream:
        next(stream.iter_lines())
        assert account(service, "llama.pages")["held_bytes"] == quoted_bytes
    service.wait_for(lambda: service.held_bytes() == 0, 10)


@pytest.mark.parametrize(
    "prompt", ["31415926535897932384" * 60, "東京は日本の首都です。" * 60, "🦙🧬" * 150, "QmFzZTY0IGlzIGRlbnNl" * 50]
)
def test_the_price_is_of_real_tokens_not_of_characters(service: Running, prompt: str) -> None:
    body = {"model": "llama", "prompt": prompt, "max_tokens": 1}
    quoted_bytes = post(service, "/v1/quote", body).json()["lines"][0]["bytes"]
    told = post(service, "/v1/completions", body).json()
    page_bytes = service.get("/v1/ledger")["engines"][0]["standing"]["padding"]
    pages = -(-(told["usage"]["prompt_tokens"] + 1) // 256)
    assert quoted_bytes == told["vram"]["held_bytes"] == pages * page_bytes


def test_a_request_without_a_limit_is_charged_the_documented_default(service: Running) -> None:
    unlimited = {key: value for key, value in TEXT.items() if key != "max_tokens"}
    assert post(service, "/v1/quote", unlimited).json() == post(service, "/v1/quote", TEXT | {"max_tokens": 128}).json()


def test_a_quote_of_what_never_fits_says_so_and_runs_nothing(service: Running) -> None:
    told = post(service, "/v1/quote", {"model": "llama", "prompt_tokens": 4000, "max_tokens": 4000, "n": 8}).json()
    assert told["verdict"] == "never"
    assert service.held_bytes() == 0


def test_a_finished_request_leaves_a_statement_without_its_text(service: Running) -> None:
    answer = post(service, "/v1/completions", TEXT | {"max_tokens": 3, "prompt": "xyzzy plugh"})
    assert answer.status_code == 200
    service.wait_for(lambda: service.get("/v1/statements")["statements"], 10)
    reply = httpx.get(f"{service.url}/v1/statements", params={"limit": 1}, timeout=10)
    (newest,) = reply.json()["statements"]
    assert newest["model"] == "llama"
    assert newest["quoted_bytes"] == newest["held_bytes"] > 0
    assert "xyzzy" not in reply.text


def test_the_ledger_and_the_engines_agree_when_nothing_runs(service: Running) -> None:
    service.wait_for(lambda: service.held_bytes() == 0, 10)
    time.sleep(1.0)
    told = service.get("/v1/ledger")
    assert told["leases"] == []
    assert {one["name"] for one in told["accounts"]} >= {"llama.pages", "unet.canvas", "host"}
    assert all(one["capacity_bytes"] > 0 for one in told["accounts"] if one["name"] != "card")
    assert {engine["model"] for engine in told["engines"]} == {"llama", "unet"}


def test_alive_and_ready(service: Running) -> None:
    assert service.get("/healthz")
    assert service.get("/readyz")["ready"] is True


def test_metrics_count_what_was_done_and_refused(service: Running) -> None:
    before = samples(service)
    post(service, "/v1/completions", TEXT | {"max_tokens": 5})
    assert post(service, "/v1/completions", TEXT | {"max_tokens": 4000, "prompt": "x", "n": 8}).status_code == 413
    after = samples(service)
    grown = {name.partition("{")[0] for name, value in after.items() if value > before.get(name, 0.0)}
    assert {"vramgate_tokens_total", "vramgate_refusals_total"} <= grown
    assert {name.partition("{")[0] for name in after} >= {"vramgate_vram_used_ratio", "vramgate_account_capacity_bytes"}


def test_engine_gauges_are_on_the_model_servers_own_port(service: Running) -> None:
    port = service.environ["VRAMGATE_TRITON__METRICS_PORT"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    for model in ("llama", "unet"):
        assert f'vramgate_engine_ready{{instance="0",model="{model}"}} 1' in text
