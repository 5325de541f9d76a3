import json
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as client

from common.errors import DeadlineExceeded, NotNow
from frontend.runs import TextChunk, TextJob
from frontend.v2_text import MAX_TEXT_BYTES
from tests.unit.fake_parts import PAGES, Parts
from tests.unit.v2_kit import ask, infer, names, refused, strings, text_input, written

CHUNKS = [
    TextChunk(0, "The ", (1, 2)),
    TextChunk(1, "A", (7,)),
    TextChunk(0, "end", (3,), finish_reason="stop"),
    TextChunk(1, "!", (8,), finish_reason="length"),
]


def test_infer_on_the_language_model_gathers_the_stream() -> None:
    parts = Parts()
    parts.teller.chunks = CHUNKS
    inputs = {
        "text_input": strings(b"hello"),
        "max_tokens": np.array([5], np.int32),
        "n": np.array([2], np.int32),
        "temperature": np.array([0.5], np.float32),
        "seed": np.array([-(2**63)], np.int64),
        "stop": strings(b"a", "é".encode()),
        "stream": np.array([False]),
    }
    result = infer(parts, "llama", inputs, request_id="r1")
    assert result.as_numpy("text_output").tolist() == [b"The end", b"A!"]
    assert result.as_numpy("token_ids").tolist() == [1, 2, 3, 7, 8]
    assert result.as_numpy("index").tolist() == [0, 1]
    assert result.as_numpy("finish_reason").tolist() == [b"stop", b"length"]
    assert result.as_numpy("logprobs") is None
    assert result.get_response()["id"] == "r1"
    job = TextJob(tuple(b"hello"), 5, n=2, temperature=0.5, seed=-(2**63), stop=("a", "é"))
    assert parts.teller.jobs == [job]
    assert parts.teller.runs[0].closed == 1


def test_text_outputs_come_as_they_were_asked_for() -> None:
    parts = Parts()
    logprobs = [{"token_id": 1, "logprob": -0.5}]
    parts.teller.chunks = [TextChunk(0, "ü", (1,), logprobs=logprobs), TextChunk(0, "x", (2,), logprobs=logprobs)]
    wanted = [
        client.InferRequestedOutput("logprobs", binary_data=False),
        client.InferRequestedOutput("text_output", binary_data=False),
        client.InferRequestedOutput("token_ids", binary_data=True),
    ]
    inputs = {"input_ids": np.array([5, 6], np.int32), "logprobs": np.array([1], np.int32)}
    result = infer(parts, "llama", inputs, outputs=wanted)
    assert names(result) == ["logprobs", "text_output", "token_ids"]
    assert result.get_output("text_output")["data"] == ["üx"]
    assert json.loads(result.get_output("logprobs")["data"][0]) == logprobs * 2
    assert result.as_numpy("token_ids").tolist() == [1, 2]
    assert parts.teller.jobs == [TextJob((5, 6), 62, logprobs=1)]


@pytest.mark.parametrize(
    ("inputs", "status", "says"),
    [
        ([text_input("max_tokens", 5, "INT32")], 400, "text_input"),
        ([text_input(), text_input("input_ids", 5, "INT32")], 400, "either"),
        ([text_input(), text_input("prompt")], 400, "'prompt'"),
        ([text_input(datatype="INT32", value=1)], 400, "BYTES"),
        ([text_input(shape=[1, 1])], 400, "shape"),
        ([text_input(shape=[2], data=["a", "b"])], 400, "shape"),
        ([text_input(value="")], 400, "text_input"),
        ([text_input(value="x" * 64)], 400, "context"),
        ([text_input("input_ids", shape=[0], data=[], datatype="INT32")], 400, "input_ids"),
        ([text_input("input_ids", PAGES.vocab_tokens, "INT32")], 400, "input_ids"),
        ([text_input("input_ids", -1, "INT32")], 400, "input_ids"),
        ([text_input(), text_input("max_tokens", 0, "INT32")], 400, "max_tokens"),
        ([text_input(), text_input("max_tokens", -1, "INT32")], 400, "max_tokens"),
        ([text_input(), text_input("max_tokens", 2**31, "INT32")], 400, "max_tokens"),
        ([text_input(), text_input("max_tokens", 63, "INT32")], 400, "max_tokens"),
        ([text_input(), text_input("max_tokens", "10", "INT32")], 400, "max_tokens"),
        ([text_input(), text_input("max_tokens", True, "INT32")], 400, "max_tokens"),
        ([text_input(), text_input("n", 9, "INT32")], 400, "n"),
        ([text_input(), text_input("temperature", -1, "FP32")], 400, "temperature"),
        ([text_input(), text_input("stream", True, "BOOL")], 400, "generate_stream"),
        ([text_input(), text_input("lease", "{}")], 403, "'lease'"),
        ([text_input("control", '{"op": "status"}')], 403, "'control'"),
    ],
)
def test_text_requests_that_are_wrong_are_refused_by_name(inputs: list[Any], status: int, says: str) -> None:
    parts = Parts()
    refused(ask(parts, "POST", "/v2/models/llama/infer", json={"inputs": inputs}), status, says)
    assert parts.teller.jobs == []


def test_text_outputs_that_are_not_there_are_refused() -> None:
    for name, status in (("statement", 403), ("control", 403), ("mask", 400)):
        body = {"inputs": [text_input()], "outputs": [{"name": name}]}
        refused(ask(Parts(), "POST", "/v2/models/llama/infer", json=body), status, name)
    classified = {"inputs": [text_input()], "outputs": [{"name": "index", "parameters": {"classification": 2}}]}
    refused(ask(Parts(), "POST", "/v2/models/llama/infer", json=classified), 400, "binary_data")


def test_text_that_is_not_utf8_is_refused() -> None:
    refused(ask(Parts(), "POST", "/v2/models/llama/infer", **written({"text_input": strings(b"\xff")})), 400, "UTF-8")


def test_generate_answers_as_tritons_llm_backends_do() -> None:
    parts = Parts()
    parts.teller.chunks = CHUNKS[::2]
    body = {"text_input": "hi", "parameters": {"stream": False, "temperature": 0, "max_tokens": 7}, "id": "r9"}
    answer = ask(parts, "POST", "/v2/models/llama/generate", content=json.dumps(body))
    assert answer.json() == {
        "id": "r9",
        "model_name": "llama",
        "model_version": "1",
        "text_output": "The end",
        "token_ids": [1, 2, 3],
        "index": 0,
        "finish_reason": "stop",
    }
    assert parts.teller.jobs == [TextJob(tuple(b"hi"), 7, temperature=0)]
    assert parts.teller.runs[0].closed == 1


@pytest.mark.parametrize(
    ("body", "job"),
    [
        ({"text_input": ["hi"], "max_tokens": [3]}, TextJob(tuple(b"hi"), 3)),
        ({"input_ids": 5, "stop": "a"}, TextJob((5,), 63, stop=("a",))),
        ({"input_ids": [5, 6], "parameters": {"stop": ["a", "b"]}}, TextJob((5, 6), 62, stop=("a", "b"))),
        ({"text_input": "hi", "exclude_input_in_output": True, "bad_words": "", "stop_words": ""}, None),
    ],
)
def test_generate_takes_scalars_and_lists_of_one_alike(body: dict[str, Any], job: TextJob | None) -> None:
    parts = Parts()
    assert ask(parts, "POST", "/v2/models/llama/generate", json=body).status_code == 200
    assert parts.teller.jobs == [job or TextJob(tuple(b"hi"), 62)]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "JSON"),
        (b"[]", 400, ""),
        (b"{", 400, "JSON"),
        (b'{"text_input": "a", "surprise": 1}', 400, "surprise"),
        (b'{"text_input": "a", "parameters": {"surprise": 1}}', 400, "surprise"),
        (b'{"text_input": "a", "parameters": {"text_input": "b"}}', 400, "text_input"),
        (b'{"text_input": "a", "parameters": []}', 400, "parameters"),
        (b'{"text_input": "a", "temperature": NaN}', 400, "temperature"),
        (b'{"text_input": "a", "max_tokens": "10"}', 400, "max_tokens"),
        (b'{"text_input": "a", "max_tokens": 1e18}', 400, "max_tokens"),
        (b'{"text_input": "a", "max_tokens": [1, 2]}', 400, "max_tokens"),
        (b'{"text_input": "a", "stop_words": ["x"]}', 400, "stop_words"),
        (b'{"text_input": "a", "stream": true}', 400, "generate_stream"),
        (b'{"text_input": "a", "lease": "{}"}', 403, "lease"),
        (b'{"control": "{}"}', 403, "control"),
        (b'{"parameters": {"control": "{}"}}', 403, "control"),
        (b'{"text_input": "\\ud800"}', 400, ""),
    ],
)
def test_generate_refuses_by_name(body: bytes, status: int, says: str) -> None:
    parts = Parts()
    refused(ask(parts, "POST", "/v2/models/llama/generate", content=body), status, says)
    assert parts.teller.jobs == []


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *blocks, rest = answer.text.split("\n\n")
    assert rest == ""
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def test_generate_stream_sends_an_event_per_piece_and_no_marker() -> None:
    parts = Parts()
    parts.teller.chunks = CHUNKS[::2]
    about = {"model_name": "llama", "model_version": "1", "index": 0}
    answer = ask(parts, "POST", "/v2/models/llama/generate_stream", json={"text_input": "hi", "stream": True})
    assert events(answer) == [
        about | {"text_output": "The ", "token_ids": [1, 2]},
        about | {"text_output": "end", "token_ids": 3, "finish_reason": "stop"},
    ]
    assert parts.teller.runs[0].closed == 1


def test_generate_stream_without_streaming_is_one_event() -> None:
    parts = Parts()
    parts.teller.chunks = CHUNKS[::2]
    answer = ask(
        parts, "POST", "/v2/models/llama/versions/1/generate_stream", json={"text_input": "a", "stream": False}
    )
    assert [item["text_output"] for item in events(answer)] == ["The end"]


def test_error_in_a_stream_is_its_last_event() -> None:
    parts = Parts()
    parts.teller.chunks, parts.teller.error = CHUNKS[:1], DeadlineExceeded("not finished within 1 s")
    first, last = events(ask(parts, "POST", "/v2/models/llama/generate_stream", json={"text_input": "hi"}))
    assert first["text_output"] == "The "
    assert (last["error"], last["code"]) == ("not finished within 1 s", "timeout")
    parts.teller.refusal = NotNow("full")
    refused(ask(parts, "POST", "/v2/models/llama/generate_stream", json={"text_input": "hi"}), 429, "full")


@pytest.mark.parametrize(
    "inputs",
    [{"input_ids": np.ones(MAX_TEXT_BYTES // 4 + 1, np.int32)}, {"text_input": strings(b"a" * MAX_TEXT_BYTES)}],
    ids=["ids", "text"],
)
def test_a_prompt_of_megabytes_is_refused_before_it_becomes_python_values(inputs: dict[str, Any]) -> None:
    parts = Parts()
    body = refused(ask(parts, "POST", "/v2/models/llama/infer", **written(inputs)), 413, "token ids")
    assert body["max_text_bytes"] == MAX_TEXT_BYTES
    assert parts.teller.jobs == []
