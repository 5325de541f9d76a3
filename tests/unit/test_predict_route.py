import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from common.errors import DeadlineExceeded, InternalFault, NeverFits, NotNow, NotReady, RequestError, UpstreamBroken
from frontend.runs import TextChunk, TextJob
from tests.unit.fake_text import BOS, STATEMENT, Parts, check_error
from tests.unit.web import run, serving_app, until


def ask(parts: Parts, **fields: Any) -> httpx.Response:
    return asyncio.run(parts.ask("POST", "/predict", json={"prompt": "ab"} | fields))


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_one_answer_is_a_text_with_its_latency(parts: Parts) -> None:
    assert ask(parts).json() == {"result": "Hello", "latency_ms": 250.0}
    assert parts.job == TextJob((BOS, 97, 98), 16)
    assert parts.teller.runs[0].closed


def test_a_batch_is_a_list(parts: Parts) -> None:
    parts.teller.chunks = (TextChunk(1, "b", finish_reason="stop"), TextChunk(0, "a", finish_reason="stop"))
    assert ask(parts, batch_size=2).json()["result"] == ["a", "b"]
    assert parts.job.n == 2


def test_fields_reach_the_job(parts: Parts) -> None:
    ask(parts, max_new_tokens=5, temperature=0.0, top_p=0.25)
    assert parts.job == TextJob((BOS, 97, 98), 5, temperature=0.0, top_p=0.25)


def test_an_answer_by_a_fallback_says_so(parts: Parts) -> None:
    parts.teller.statement = replace(STATEMENT, rung="host-cpu")
    assert ask(parts).json()["fallback"] == "host-cpu"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotNow("full; try a shorter prompt", numbers={"price_bytes": 9, "available_bytes": 3}, retry_after_s=2), 429),
        (NeverFits("too large", numbers={"price_bytes": 9, "capacity_bytes": 3}), 413),
        (NotReady("llama is loading", retry_after_s=1), 503),
        (DeadlineExceeded("not finished within 30 s"), 408),
        (UpstreamBroken("the model server is gone"), 500),
        (InternalFault("the answer could not be made"), 500),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_failures_have_the_statuses_of_this_route(parts: Parts, error: RequestError, status: int, late: bool) -> None:
    if late:
        parts.teller.error = error
    else:
        parts.teller.refusal = error
    answer = ask(parts)
    assert answer.status_code == status
    assert answer.json()["error"].items() >= ({"message": error.message} | error.numbers).items()
    assert ("retry-after" in answer.headers) == (error.retry_after_s is not None)
    assert all(item.closed for item in parts.teller.runs)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("prompt", ["", 3, None, ["a"], "x" * 63, "x" * 10_000]),
        ("max_new_tokens", [0, -1, 2**31, 62, 1e18, float("nan"), "10", True]),
        ("temperature", [-1, 2.5, "1", True, float("inf")]),
        ("top_p", [0, 1.5, True]),
        ("batch_size", [0, 5, 1.5, "2", True]),
        ("model", ["tiny"]),
    ],
)
def test_bad_input_is_refused_by_name(parts: Parts, field: str, values: list[Any]) -> None:
    for value in values:
        body = json.dumps({"prompt": "ab", field: value})
        headers = {"Content-Type": "application/json"}
        answer = asyncio.run(parts.ask("POST", "/predict", content=body, headers=headers))
        check_error(answer, 400, "invalid_value", field)
    assert not parts.teller.jobs


def test_a_client_that_leaves_ends_its_run(parts: Parts) -> None:
    parts.teller.statement = None

    async def leave() -> None:
        async with serving_app(parts.app) as url, httpx.AsyncClient(base_url=url) as client:
            asking = asyncio.create_task(client.post("/predict", json={"prompt": "ab"}))
            await until(lambda: bool(parts.teller.runs))
            asking.cancel()
            await until(lambda: bool(parts.teller.runs[0].closed))

    run(leave)
