import asyncio
import json
from typing import Any

import httpx
import pytest
from openai.types import Completion, CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from common.errors import DeadlineExceeded, NeverFits, NotNow, UpstreamBroken
from frontend.runs import TextChunk, TextJob
from tests.unit.fake_text import BOS, HELLO, VRAM, Parts, check_error
from tests.unit.web import run, serving_app, until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
HI = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
LOGPROBS = [
    {"token_id": 72, "token": "Hel", "logprob": -0.5, "top": [[72, "Hel", -0.5], [74, "Yo", -1.5]]},
    {"token_id": 73, "token": "ö", "logprob": float("-inf"), "top": [[75, "x", -0.25], [76, "x", -0.75]]},
]


def post(parts: Parts, path: str, body: dict[str, Any], **options: Any) -> httpx.Response:
    return asyncio.run(parts.ask("POST", path, json=body, **options))


def complete(parts: Parts, **fields: Any) -> httpx.Response:
    return post(parts, COMPLETIONS, {"model": "tiny", "prompt": "ab"} | fields)


def chat(parts: Parts, **fields: Any) -> httpx.Response:
    return post(parts, CHAT, HI | fields)


def events(answer: httpx.Response) -> list[str]:
    """What stands behind ``data:`` in each event."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    blocks = answer.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


@pytest.fixture
def parts() -> Parts:
    return Parts()


def test_completion_tells_text_usage_and_bytes(parts: Parts) -> None:
    answer = complete(parts).json()
    told = Completion.model_validate(answer)
    assert (told.id, told.object, told.model) == ("cmpl-lease-1", "text_completion", "tiny")
    assert [(choice.index, choice.text, choice.finish_reason) for choice in told.choices] == [(0, "Hello", "stop")]
    assert (answer["usage"], answer["vram"]) == (USAGE, VRAM)
    assert parts.job == TextJob((BOS, 97, 98), 16)
    assert parts.teller.runs[0].closed


def test_chat_tells_a_message_usage_and_bytes(parts: Parts) -> None:
    answer = chat(parts).json()
    told = ChatCompletion.model_validate(answer)
    assert (told.id, told.object) == ("chatcmpl-lease-1", "chat.completion")
    assert [(choice.message.role, choice.message.content) for choice in told.choices] == [("assistant", "Hello")]
    assert answer["vram"] == VRAM
    assert answer["usage"]["prompt_tokens"] == len("<user>hi")


def test_chat_is_rendered_by_the_template_and_gets_no_second_start_token(parts: Parts) -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "annotations": [], "tool_calls": None},
    ]
    assert chat(parts, messages=messages).status_code == 200
    assert bytes(parts.job.prompt_ids) == b"<system>a\nb<assistant>c"


def test_every_sampling_field_reaches_the_job(parts: Parts) -> None:
    fields: dict[str, Any] = {"temperature": 0, "top_p": 0.5, "top_k": 7, "repetition_penalty": 1.5, "n": 3, "seed": -5}
    complete(parts, prompt=[5, 6], max_tokens=62, stop=["x", "y"], logprobs=2, user="me", **fields)
    assert parts.job == TextJob((5, 6), 62, stop=("x", "y"), logprobs=2, **fields)


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [BOS, 97, 98], [[BOS, 97, 98]]])
def test_a_prompt_may_stand_alone_in_a_list(parts: Parts, prompt: Any) -> None:
    assert complete(parts, prompt=prompt).status_code == 200
    assert parts.job.prompt_ids == (BOS, 97, 98)


def test_what_is_null_or_asks_for_nothing_is_as_if_absent(parts: Parts) -> None:
    nothing: dict[str, Any] = {"temperature": None, "n": None, "stop": None, "logit_bias": {}, "frequency_penalty": 0}
    nothing |= {"presence_penalty": 0.0, "tools": [], "response_format": {"type": "text"}, "stream": False}
    assert chat(parts, **nothing).status_code == 200
    assert parts.job == TextJob(tuple(b"<user>hi"), 16)


@pytest.mark.parametrize(("prompt_tokens", "max_tokens"), [(63, 1), (60, 4), (10, 16)])
def test_absent_max_tokens_is_the_default_or_what_the_context_leaves(
    parts: Parts, prompt_tokens: int, max_tokens: int
) -> None:
    assert complete(parts, prompt=[7] * prompt_tokens).status_code == 200
    assert parts.job.max_tokens == max_tokens


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_chat_knows_both_names_of_the_limit(parts: Parts, name: str) -> None:
    chat(parts, **{name: 5})
    assert parts.job.max_tokens == 5
    message = check_error(chat(parts, **{name: 57}), 400, "invalid_value", name)
    assert "57" in message
    assert "56" in message


def test_deadline_comes_from_the_header(parts: Parts) -> None:
    assert post(parts, CHAT, HI, headers={"X-Request-Timeout": "2.5"}).status_code == 200
    assert chat(parts).status_code == 200
    assert parts.teller.timeouts_s == [2.5, 30.0]


def test_completion_stream_is_pieces_and_a_done_mark(parts: Parts) -> None:
    *pieces, end = events(complete(parts, stream=True))
    assert end == "[DONE]"
    told = [json.loads(piece)["choices"][0] for piece in pieces]
    assert [(choice["text"], choice["finish_reason"]) for choice in told] == [("Hel", None), ("lo", "stop")]
    assert all("usage" not in json.loads(piece) for piece in pieces)
    assert parts.teller.runs[0].closed


def test_chat_stream_tells_the_role_once_per_answer(parts: Parts) -> None:
    parts.teller.chunks = (TextChunk(1, "ja", (1,)), *HELLO, TextChunk(1, "", (2,), finish_reason="length"))
    *pieces, _ = events(chat(parts, stream=True, n=2))
    told = [ChatCompletionChunk.model_validate_json(piece).choices[0] for piece in pieces]
    assert [(choice.index, choice.delta.role, choice.delta.content, choice.finish_reason) for choice in told] == [
        (1, "assistant", "ja", None),
        (0, "assistant", "Hel", None),
        (0, None, "lo", "stop"),
        (1, None, None, "length"),
    ]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_usage_is_the_last_event_where_it_is_asked_for(parts: Parts, path: str) -> None:
    body = HI | {"prompt": "hi"} if path == COMPLETIONS else HI
    body = {key: value for key, value in body.items() if path == CHAT or key != "messages"}
    answer = post(parts, path, body | {"stream": True, "stream_options": {"include_usage": True}})
    *pieces, bill, end = events(answer)
    assert [json.loads(piece)["usage"] for piece in pieces] == [None, None]
    assert json.loads(bill)["choices"] == []
    assert CompletionUsage.model_validate(json.loads(bill)["usage"]).completion_tokens == 2
    assert json.loads(bill)["vram"] == VRAM
    assert end == "[DONE]"


def test_several_answers_are_told_apart_and_put_together(parts: Parts) -> None:
    parts.teller.chunks = (TextChunk(1, "a"), *HELLO, TextChunk(1, "b", finish_reason="length"))
    choices = complete(parts, n=2).json()["choices"]
    assert [(choice["index"], choice["text"], choice["finish_reason"]) for choice in choices] == [
        (0, "Hello", "stop"),
        (1, "ab", "length"),
    ]


def test_completion_logprobs_have_offsets_that_run_through_the_stream(parts: Parts) -> None:
    parts.teller.chunks = (
        TextChunk(0, "Hel", (72,), LOGPROBS[:1]),
        TextChunk(0, "ö", (73,), LOGPROBS[1:], finish_reason="stop"),
    )
    whole = complete(parts, logprobs=2).json()["choices"][0]["logprobs"]
    assert whole == {
        "tokens": ["Hel", "ö"],
        "token_logprobs": [-0.5, -9999.0],
        "top_logprobs": [{"Hel": -0.5, "Yo": -1.5}, {"x": -0.25}],
        "text_offset": [0, 3],
    }
    *pieces, _ = events(complete(parts, logprobs=2, stream=True))
    assert [json.loads(piece)["choices"][0]["logprobs"]["text_offset"] for piece in pieces] == [[0], [3]]


def test_chat_logprobs_have_bytes_and_alternatives(parts: Parts) -> None:
    parts.teller.chunks = (TextChunk(0, "Helö", (72, 73), LOGPROBS, finish_reason="stop"),)
    answer = ChatCompletion.model_validate(chat(parts, logprobs=True, top_logprobs=2).json())
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [(item.token, item.logprob, item.bytes) for item in logprobs.content] == [
        ("Hel", -0.5, [72, 101, 108]),
        ("ö", -9999.0, [195, 182]),
    ]
    assert [[item.token for item in token.top_logprobs] for token in logprobs.content] == [["Hel", "Yo"], ["x", "x"]]
    assert parts.job.logprobs == 2


def test_logprobs_without_a_number_are_the_chosen_tokens_alone(parts: Parts) -> None:
    chat(parts, logprobs=True)
    assert parts.job.logprobs == 0


@pytest.mark.parametrize("stream", [False, True])
def test_refusal_before_the_first_token_has_its_own_status(parts: Parts, stream: bool) -> None:
    parts.teller.refusal = NotNow("full", numbers={"price_bytes": 9, "available_bytes": 3}, retry_after_s=1.2)
    answer = chat(parts, stream=stream)
    check_error(answer, 429, "rate_limit_exceeded")
    assert answer.headers["retry-after"] == "2"
    assert (answer.json()["error"]["price_bytes"], answer.json()["error"]["available_bytes"]) == (9, 3)
    parts.teller.refusal = NeverFits("too large", numbers={"price_bytes": 9, "capacity_bytes": 3})
    check_error(complete(parts, stream=stream), 413, "never_fits")


@pytest.mark.parametrize(
    ("error", "status"), [(UpstreamBroken("the model server is gone"), 502), (DeadlineExceeded("too late"), 504)]
)
def test_error_after_the_first_token(parts: Parts, error: Any, status: int) -> None:
    parts.teller.error = error
    check_error(complete(parts), status, error.kind.code)
    *pieces, last = events(complete(parts, stream=True))
    assert len(pieces) == 2
    assert json.loads(last) == error.to_body()
    assert all(item.closed for item in parts.teller.runs)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_run(parts: Parts, stream: bool) -> None:
    parts.teller.statement = None

    async def leave() -> None:
        async with serving_app(parts.app) as url, httpx.AsyncClient(base_url=url) as client:
            if stream:
                async with client.stream("POST", CHAT, json=HI | {"stream": True}) as answer:
                    await anext(answer.aiter_lines())
            else:
                asking = asyncio.create_task(client.post(CHAT, json=HI))
                await until(lambda: bool(parts.teller.runs))
                assert not parts.teller.runs[0].closed
                asking.cancel()
            await until(lambda: bool(parts.teller.runs[0].closed))

    run(leave)


def test_models_are_listed_and_shown(parts: Parts) -> None:
    listed = asyncio.run(parts.ask("GET", "/v1/models")).json()
    shown = asyncio.run(parts.ask("GET", "/v1/models/tiny")).json()
    assert listed == {"object": "list", "data": [shown]}
    assert (shown["id"], shown["object"]) == ("tiny", "model")


@pytest.mark.parametrize("model", ["gpt-4o", "org/name"])
def test_unknown_model_is_not_found_and_the_served_one_named(parts: Parts, model: str) -> None:
    for answer in (asyncio.run(parts.ask("GET", f"/v1/models/{model}")), chat(parts, model=model)):
        assert "'tiny'" in check_error(answer, 404, "model_not_found", "model")
