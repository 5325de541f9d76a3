import asyncio
import gzip
import json
import string
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.forms import MAX_JSON_BYTES, MAX_NAME_CHARS, Form
from frontend.openai_forms import ChatForm, CompletionForm
from frontend.routes.predict import PredictForm
from tests.unit.bad_text import BAD_CHATS, BAD_COMPLETIONS
from tests.unit.fake_text import Parts, check_error

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
PREDICT = "/predict"
JSON = {"Content-Type": "application/json"}
GOOD: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"model": "tiny", "prompt": "ab"},
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    PREDICT: {"prompt": "ab"},
}
FORMS: dict[str, type[Form]] = {COMPLETIONS: CompletionForm, CHAT: ChatForm, PREDICT: PredictForm}


@cache
def shared_parts() -> Parts:
    return Parts()


def post(parts: Parts, path: str, content: str | bytes, headers: dict[str, str] = JSON) -> httpx.Response:
    return asyncio.run(parts.ask("POST", path, content=content, headers=headers))


@pytest.fixture(scope="module")
def parts() -> Parts:
    return shared_parts()


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [(COMPLETIONS, *case) for case in BAD_COMPLETIONS] + [(CHAT, *case) for case in BAD_CHATS],
    ids=lambda value: repr(value)[-60:] if isinstance(value, str) and "{" in value else None,
)
def test_bad_input_is_refused_by_name(
    parts: Parts, path: str, body: str, status: int, code: str, param: str | None
) -> None:
    before = len(parts.teller.jobs)
    answer = post(parts, path, body)
    check_error(answer, status, code, param)
    assert answer.headers["x-should-retry"] == "false"
    assert len(parts.teller.jobs) == before
    assert post(parts, path, json.dumps(GOOD[path])).status_code == 200


@pytest.mark.parametrize(
    ("prompt", "numbers"),
    [([7] * 70, ("70", "64")), ("x" * 99, ("100", "64")), ("x" * 257, ("257", "256", "64"))],
)
def test_prompt_over_the_context_is_told_both_numbers(parts: Parts, prompt: Any, numbers: tuple[str, ...]) -> None:
    answer = post(parts, COMPLETIONS, json.dumps(GOOD[COMPLETIONS] | {"prompt": prompt}))
    message = check_error(answer, 400, "invalid_value", "prompt")
    assert all(number in message for number in numbers)
    assert answer.json()["error"]["context_tokens"] == 64


@pytest.mark.parametrize("path", list(GOOD))
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        JSON | {"Content-Encoding": "gzip"},
    ],
)
def test_what_is_not_said_to_be_plain_json_is_unsupported(parts: Parts, path: str, headers: dict[str, str]) -> None:
    body = json.dumps(GOOD[path]).encode()
    body = gzip.compress(body) if "Content-Encoding" in headers else body
    check_error(post(parts, path, body, headers), 415, "unsupported_media_type")


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_content_type_may_have_parameters_and_capitals(parts: Parts, content_type: str) -> None:
    assert post(parts, CHAT, json.dumps(GOOD[CHAT]), {"Content-Type": content_type}).status_code == 200


@pytest.mark.parametrize("path", list(GOOD))
@pytest.mark.parametrize("says_its_length", [True, False])
def test_long_json_is_not_parsed(parts: Parts, path: str, says_its_length: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b" " * MAX_JSON_BYTES
        yield b" "

    content = b" " * (MAX_JSON_BYTES + 1) if says_its_length else pieces()
    answer = asyncio.run(parts.ask("POST", path, content=content, headers=JSON))
    check_error(answer, 413, "content_too_large")
    assert answer.json()["error"]["max_body_bytes"] == MAX_JSON_BYTES


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "soon", "61"])
def test_bad_deadline_is_refused(parts: Parts, timeout: str) -> None:
    answer = post(parts, CHAT, json.dumps(GOOD[CHAT]), JSON | {"X-Request-Timeout": timeout})
    check_error(answer, 400, "invalid_value", "x-request-timeout")


def test_error_repeats_neither_prompt_nor_a_long_name(parts: Parts) -> None:
    name, secret = "n" * 10_000, "attack at dawn"
    answer = post(parts, COMPLETIONS, json.dumps(GOOD[COMPLETIONS] | {"prompt": [secret, secret], name: secret}))
    assert secret not in answer.text
    answer = post(parts, COMPLETIONS, json.dumps(GOOD[COMPLETIONS] | {name: secret}))
    check_error(answer, 400, "invalid_value", name[:MAX_NAME_CHARS])
    assert secret not in answer.text
    assert len(answer.text) < 400


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([10**18, 2**31, 2**63, "tiny", "user", "text", 0, 1, 0.5]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, Any]:
    """A path and a body: any JSON, or a good body with some fields replaced or added."""
    path = draw(st.sampled_from(list(GOOD)))
    if draw(st.booleans()):
        return path, draw(VALUES)
    names = st.sampled_from([*FORMS[path].model_fields, "foo"]) | st.text(string.printable, max_size=8)
    return path, GOOD[path] | draw(st.dictionaries(names, VALUES, min_size=1, max_size=3))


@given(bodies())
@settings(max_examples=200, deadline=None)
def test_no_json_gets_anything_but_an_answer_or_a_refusal(drawn: tuple[str, Any]) -> None:
    path, body = drawn
    answer = post(shared_parts(), path, json.dumps(body))
    if answer.status_code != 200:
        assert answer.status_code in {400, 404}, answer.text
        assert answer.json()["error"].keys() >= {"message", "type", "param", "code"}


@given(st.sampled_from(list(GOOD)), st.binary(max_size=40))
@settings(max_examples=100, deadline=None)
def test_no_bytes_get_anything_but_a_refusal(path: str, body: bytes) -> None:
    answer = post(shared_parts(), path, body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_value"


def test_masses_of_empty_turns_are_refused_before_they_are_rendered(parts: Parts) -> None:
    turns = [{"role": "user", "content": ""}] * 1000
    says = check_error(
        post(parts, CHAT, json.dumps({"model": "tiny", "messages": turns})), 400, "invalid_value", "messages"
    )
    assert "characters" in says
