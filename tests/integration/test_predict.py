"""``POST /predict`` against the whole service."""

from typing import Any

import httpx
import pytest

from tests.integration.running import Running


def predict(service: Running, timeout: str = "30", **fields: Any) -> httpx.Response:
    headers = {"X-Request-Timeout": timeout}
    return httpx.post(f"{service.url}/predict", json={"prompt": "1, 2, 3, 4,"} | fields, headers=headers, timeout=60)


def test_one_answer_is_a_text(service: Running) -> None:
    told = predict(service, max_new_tokens=9, temperature=0).json()
    assert told.keys() == {"result", "latency_ms"}
    assert told["result"] == " 5, 6, 7,"
    assert told["latency_ms"] > 0


def test_a_batch_is_a_list(service: Running) -> None:
    told = predict(service, max_new_tokens=4, temperature=0.9, top_p=0.9, batch_size=3).json()
    assert [type(text) for text in told["result"]] == [str, str, str]


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"prompt": ""}, "prompt"), ({"max_new_tokens": 0}, "max_new_tokens"), ({"batch_size": True}, "batch_size")],
)
def test_bad_input_is_refused_by_name(service: Running, fields: dict[str, Any], param: str) -> None:
    answer = predict(service, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_deadline_is_408(service: Running) -> None:
    answer = predict(service, timeout="0.3", max_new_tokens=900, batch_size=2)
    assert answer.status_code == 408
    assert answer.json()["error"]["code"] == "timeout"
    service.wait_for(lambda: service.held_bytes() == 0, 10)


def test_full_ledger_is_429_with_both_numbers_and_the_next_request_works(service: Running) -> None:
    # One lease holds most of the pool, so a second like it would have to wait for longer than it may.
    body = {"model": "llama", "prompt": "Once upon a time", "max_tokens": 8000, "stream": True}
    with httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=60) as stream:
        next(stream.iter_lines())
        answer = predict(service, timeout="0.5", max_new_tokens=8000)
        assert answer.status_code == 429, answer.text
        error = answer.json()["error"]
        assert error["price_bytes"] > error["available_bytes"]
        assert int(answer.headers["retry-after"]) >= 1
    service.wait_for(lambda: service.held_bytes() == 0, 10)
    assert predict(service, max_new_tokens=1).status_code == 200
