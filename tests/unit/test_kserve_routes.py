import asyncio
import gzip
import io
import json
import zlib
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as client
from numpy.typing import NDArray
from PIL import Image
from tritonclient.utils import np_to_triton_dtype

from common.errors import DeadlineExceeded, NotNow
from frontend.runs import ImageJob, TextChunk, TextJob
from frontend.tensors import HEADER_LENGTH
from tests.unit.fake_parts import PAGES, TILES, Parts, mask_of

IMAGE = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
CHUNKS = [
    TextChunk(0, "The ", (1, 2)),
    TextChunk(1, "A", (7,)),
    TextChunk(0, "end", (3,), finish_reason="stop"),
    TextChunk(1, "!", (8,), finish_reason="length"),
]


def ask(parts: Parts, method: str, path: str, **options: Any) -> httpx.Response:
    return asyncio.run(parts.ask(method, path, **options))


def strings(*values: bytes) -> NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def written(inputs: dict[str, Any], binary: bool = True, **more: Any) -> dict[str, Any]:
    """Body and headers of tritonclient's own ``infer``."""
    tensors = []
    for name, array in inputs.items():
        tensor = client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensors.append(tensor.set_data_from_numpy(array, binary_data=binary))
    body, length = client.InferenceServerClient.generate_request_body(tensors, **more)
    return {"content": body, "headers": {} if length is None else {HEADER_LENGTH: str(length)}}


def infer(parts: Parts, model: str, inputs: dict[str, Any], **more: Any) -> client.InferResult:
    """What tritonclient makes of the answer."""
    answer = ask(parts, "POST", f"/v2/models/{model}/infer", **written(inputs, **more))
    assert answer.status_code == 200, answer.text
    length = answer.headers.get(HEADER_LENGTH)
    return client.InferenceServerClient.parse_response_body(
        answer.content, header_length=None if length is None else int(length)
    )


def names(result: client.InferResult) -> list[str]:
    return [output["name"] for output in result.get_response()["outputs"]]


def refused(answer: httpx.Response, status: int, says: str = "") -> dict[str, Any]:
    """The error in the form that tritonclient reads."""
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    assert isinstance(body["error"], str)
    assert says in body["error"]
    assert body.keys() >= {"error", "type", "param", "code"}
    return body


@pytest.mark.parametrize("binary", [True, False])
def test_image_tensor_goes_through_and_the_mask_comes_back(binary: bool) -> None:
    parts = Parts()
    result = infer(parts, "unet", {"image": IMAGE}, binary=binary, request_id="r7")
    np.testing.assert_array_equal(result.as_numpy("mask"), mask_of(2, 3))
    assert names(result) == ["mask"], "neither statement nor what was not asked for"
    assert result.get_response()["id"] == "r7"
    assert parts.teller.ended == ["settled"]
    assert parts.teller.held[0].statement is not None
    if binary:
        assert parts.triton.binary == IMAGE.tobytes()


def test_engine_gets_the_lease_and_is_asked_for_the_statement() -> None:
    parts = Parts()
    infer(parts, "unet", {"image": IMAGE, "threshold": np.array([0.25], np.float32)})
    sent = {tensor["name"]: tensor for tensor in parts.triton.header["inputs"]}
    assert sent.keys() == {"image", "threshold", "lease"}
    assert json.loads(sent["lease"]["data"][0])["id"] == parts.teller.held[0].wire.id
    assert [output["name"] for output in parts.triton.header["outputs"]] == ["mask", "statement"]
    assert parts.triton.binary == IMAGE.tobytes() + np.float32(0.25).tobytes()
    (job,) = parts.teller.jobs
    assert isinstance(job, ImageJob)
    assert (job.height, job.width, job.threshold, job.probabilities) == (2, 3, 0.25, False)


@pytest.mark.parametrize("mask_binary", [True, False])
@pytest.mark.parametrize("probabilities_binary", [True, False])
def test_outputs_come_as_they_were_asked_for(mask_binary: bool, probabilities_binary: bool) -> None:
    parts = Parts()
    wanted = [
        client.InferRequestedOutput("probabilities", binary_data=probabilities_binary),
        client.InferRequestedOutput("mask", binary_data=mask_binary),
    ]
    result = infer(parts, "unet", {"image": IMAGE}, outputs=wanted)
    assert names(result) == ["probabilities", "mask"]
    np.testing.assert_array_equal(result.as_numpy("mask"), mask_of(2, 3))
    np.testing.assert_array_equal(
        result.as_numpy("probabilities"), np.linspace(0, 1, 6, dtype=np.float32).reshape(1, 2, 3)
    )
    assert "data" in result.get_output("mask") or mask_binary
    (job,) = parts.teller.jobs
    assert isinstance(job, ImageJob)
    assert job.probabilities, "what is asked for is priced"


def test_encoded_image_is_priced_by_its_header() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (3, 2)).save(buffer, "PNG")
    parts = Parts()
    result = infer(parts, "unet", {"encoded": strings(buffer.getvalue())})
    assert result.as_numpy("mask").shape == (2, 3)
    assert parts.teller.jobs == [ImageJob(2, 3, encoded=buffer.getvalue())]


def test_version_and_plain_json_without_binary_parts() -> None:
    tensor = {"name": "image", "shape": [1, 1, 3], "datatype": "UINT8", "data": [1, 2, 3]}
    answer = ask(Parts(), "POST", "/v2/models/unet/versions/1/infer", json={"inputs": [tensor]})
    assert answer.headers["content-type"] == "application/json"
    assert HEADER_LENGTH not in answer.headers
    assert answer.json()["outputs"] == [{"name": "mask", "datatype": "UINT8", "shape": [1, 1], "data": [1]}]


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_bodies_of_tritonclient_are_read(encoding: str, compress: Any) -> None:
    message = written({"image": IMAGE})
    headers = message["headers"] | {"Content-Encoding": encoding}
    answer = ask(Parts(), "POST", "/v2/models/unet/infer", content=compress(message["content"]), headers=headers)
    assert answer.status_code == 200, answer.text
    refused(ask(Parts(), "POST", "/v2/models/unet/infer", content=message["content"], headers=headers), 400, encoding)


def image_input(**changes: Any) -> dict[str, Any]:
    return {"name": "image", "shape": [1, 1, 3], "datatype": "UINT8", "data": [1, 2, 3]} | changes


def text_input(name: str = "text_input", value: Any = "hi", datatype: str = "BYTES", **changes: Any) -> dict[str, Any]:
    return {"name": name, "shape": [1], "datatype": datatype, "data": [value]} | changes


@pytest.mark.parametrize(
    ("inputs", "outputs", "status", "says"),
    [
        ([], [], 400, "inputs"),
        ([text_input("threshold", 0.5, "FP32")], [], 400, "either"),
        ([image_input(), text_input("encoded", "x")], [], 400, "either"),
        ([text_input("encoded", "PNG")], [], 400, "binary"),
        ([image_input(name="picture")], [], 400, "'picture'"),
        ([image_input(datatype="INT32")], [], 400, "UINT8"),
        ([image_input(shape=[3, 1, 1])], [], 400, "[H, W, 3]"),
        ([image_input(shape=[1, 1, 1, 3])], [], 400, "[H, W, 3]"),
        ([image_input(shape=[3])], [], 400, "[H, W, 3]"),
        ([image_input(shape=[0, 1, 3], data=[])], [], 400, "[H, W, 3]"),
        ([image_input(shape=[1, 2, 3])], [], 400, "elements"),
        ([image_input(data=[1, 2, 300])], [], 400, "no UINT8"),
        ([image_input(shape=[10**6, 10**6, 3])], [], 413, "pixels"),
        ([image_input(), text_input("threshold", 1, "FP32")], [], 400, "threshold"),
        ([image_input(), text_input("threshold", 0.5, "FP64")], [], 400, "FP32"),
        ([image_input(), text_input("threshold", 0.5, "FP32", shape=[])], [], 400, "shape"),
        ([image_input(), text_input("lease", "{}")], [], 403, "'lease'"),
        ([text_input("control", '{"op": "status"}')], [], 403, "'control'"),
        ([image_input()], ["statement"], 403, "'statement'"),
        ([image_input()], ["control"], 403, "'control'"),
        ([image_input()], ["edges"], 400, "'edges'"),
    ],
)
def test_unet_requests_that_are_wrong_are_refused_by_name(
    inputs: list[Any], outputs: list[str], status: int, says: str
) -> None:
    parts = Parts()
    body = {"inputs": inputs, "outputs": [{"name": name} for name in outputs]}
    refused(ask(parts, "POST", "/v2/models/unet/infer", json=body), status, says)
    assert parts.teller.held == []
    assert parts.triton.asked == [], "nothing was sent"
    assert infer(parts, "unet", {"image": IMAGE}).as_numpy("mask").shape == (2, 3), "the next request works"


def test_threshold_that_is_no_number_is_refused() -> None:
    for value in (np.nan, np.inf, 0.0, -1.0):
        message = written({"image": IMAGE, "threshold": np.array([value], np.float32)})
        refused(ask(Parts(), "POST", "/v2/models/unet/infer", **message), 400, "threshold")


def test_threshold_of_several_classes_is_refused() -> None:
    parts = Parts()
    parts.engines.tiles = replace(TILES, classes=2)
    message = written({"image": IMAGE, "threshold": np.array([0.5], np.float32)})
    refused(ask(parts, "POST", "/v2/models/unet/infer", **message), 400, "classes")


def test_large_outputs_come_only_as_binary_data() -> None:
    large = np.zeros((1, 2**20 // 2 + 1, 3), np.uint8)
    wanted = [client.InferRequestedOutput("mask", binary_data=True)]
    parts = Parts()
    parts.engines.tiles = replace(TILES, classes=2, max_pixels=10**7)
    assert infer(parts, "unet", {"image": large}, outputs=wanted).as_numpy("mask").shape == large.shape[:2]
    wanted.append(client.InferRequestedOutput("probabilities", binary_data=False))
    message = written({"image": large}, outputs=wanted)
    refused(ask(parts, "POST", "/v2/models/unet/infer", **message), 400, "binary")


@pytest.mark.parametrize("key", ["priority", "sequence_id", "custom"])
def test_parameters_that_would_be_ignored_are_refused(key: str) -> None:
    body = {"inputs": [image_input()], "parameters": {key: 1}}
    refused(ask(Parts(), "POST", "/v2/models/unet/infer", json=body), 400, key)


def test_timeout_of_tritonclient_is_the_deadline() -> None:
    parts = Parts()
    infer(parts, "unet", {"image": IMAGE}, timeout=2_500_000)
    assert parts.teller.timeouts_s == [2.5]
    for timeout in (0, -1, 10**15, True, 1.5, "1"):
        body = {"inputs": [image_input()], "parameters": {"timeout": timeout}}
        refused(ask(parts, "POST", "/v2/models/unet/infer", json=body), 400, "timeout")


def test_refusal_of_admission_reads_in_tritonclient() -> None:
    parts = Parts()
    parts.teller.refusal = NotNow("unet.canvas: 8 B wanted", numbers={"available_bytes": 4}, retry_after_s=3)
    answer = ask(parts, "POST", "/v2/models/unet/infer", **written({"image": IMAGE}))
    assert refused(answer, 429, "8 B wanted")["available_bytes"] == 4
    assert answer.headers["retry-after"] == "3"


def test_failure_of_the_engine_keeps_its_meaning_and_leaves_the_lease_to_be_cancelled() -> None:
    parts = Parts()
    parts.triton.error = (400, '[INVALID_ARG] image: it cannot be decoded {"param": "encoded"}')
    body = refused(ask(parts, "POST", "/v2/models/unet/infer", **written({"image": IMAGE})), 400, "decoded")
    assert body["param"] == "encoded"
    parts.triton.error = (500, "Stub process is not healthy.")
    refused(ask(parts, "POST", "/v2/models/unet/infer", **written({"image": IMAGE})), 502, "Stub process")
    parts.triton.error, parts.triton.statement = None, None
    refused(ask(parts, "POST", "/v2/models/unet/infer", **written({"image": IMAGE})), 502, "statement")
    assert parts.teller.ended == ["InvalidRequest", "UpstreamBroken", "UpstreamBroken"]


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


@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_generate_on_images_is_refused_with_advice(verb: str) -> None:
    refused(ask(Parts(), "POST", f"/v2/models/unet/{verb}", json={"image": [1]}), 400, "/v1/segment")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/llama/load"),
        ("POST", "/v2/repository/models/llama/unload"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/systemsharedmemory/region/x/register"),
        ("POST", "/v2/cudasharedmemory/region/x/register"),
        ("GET", "/v2/trace/setting"),
        ("POST", "/v2/models/llama/trace/setting"),
        ("GET", "/v2/logging"),
        ("POST", "/v2/logging"),
        ("GET", "/v2/models/llama/stats"),
        ("GET", "/v2/models/llama/versions/1/stats"),
        ("GET", "/v2/models"),
        ("GET", "/v2/"),
        ("GET", "/v2/models/llama/../../repository/index"),
        ("GET", "/v2/models/llama%2F..%2F..%2Frepository/index"),
    ],
)
def test_management_is_forbidden(method: str, path: str) -> None:
    parts = Parts()
    refused(ask(parts, method, path), 403, "not for clients")
    assert parts.triton.asked == []


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v2/models/llama/infer"), ("POST", "/v2"), ("DELETE", "/v2/models/unet")]
)
def test_wrong_verb_on_a_served_route_is_said_so(method: str, path: str) -> None:
    refused(ask(Parts(), method, path), 405, method)


def test_models_without_a_price_are_forbidden_and_unknown_ones_not_found() -> None:
    parts = Parts()
    parts.triton.answers["/v2/models/resnet"] = {"name": "resnet"}
    for method, path in (("GET", "/v2/models/{}"), ("POST", "/v2/models/{}/infer"), ("GET", "/v2/models/{}/ready")):
        refused(ask(parts, method, path.format("resnet")), 403, "no price")
        assert refused(ask(parts, method, path.format("nothing")), 404, "nothing")["code"] == "model_not_found"
    refused(ask(parts, "GET", "/v2/models/llama/versions/2"), 404, "version")
    refused(ask(parts, "POST", "/v2/models/unet/versions/x/infer"), 404, "version")


def test_health_is_that_of_the_whole_service() -> None:
    parts = Parts()
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/llama/ready", "/v2/models/unet/versions/1/ready"):
        assert ask(parts, "GET", path).status_code == 200
    parts.engines.trouble = {"unet": "loading"}
    assert ask(parts, "GET", "/v2/health/live").status_code == 200
    refused(ask(parts, "GET", "/v2/health/ready"), 503, "unet: loading")
    refused(ask(parts, "GET", "/v2/models/unet/ready"), 503, "loading")
    assert ask(parts, "GET", "/v2/models/llama/ready").status_code == 200
    refused(ask(parts, "POST", "/v2/models/unet/infer", **written({"image": IMAGE})), 503, "loading")


def test_metadata_shows_what_clients_may_use() -> None:
    parts = Parts()
    tensors = [{"name": "image"}, {"name": "lease"}, {"name": "control"}]
    outputs = [{"name": "mask"}, {"name": "statement"}, {"name": "control"}]
    parts.triton.answers = {
        "/v2": {
            "name": "triton",
            "extensions": ["classification", "model_repository(unload_dependents)", "statistics"],
        },
        "/v2/models/unet": {"name": "unet", "versions": ["1"], "inputs": tensors, "outputs": outputs},
        "/v2/models/unet/config": {"name": "unet", "input": tensors, "output": outputs, "max_batch_size": 0},
    }
    assert ask(parts, "GET", "/v2").json()["extensions"] == ["classification"]
    about = {"name": "unet", "versions": ["1"], "inputs": [{"name": "image"}], "outputs": [{"name": "mask"}]}
    assert ask(parts, "GET", "/v2/models/unet").json() == about
    assert ask(parts, "GET", "/v2/models/unet/versions/1").json() == about
    config = ask(parts, "GET", "/v2/models/unet/config").json()
    assert config == {"name": "unet", "input": [{"name": "image"}], "output": [{"name": "mask"}], "max_batch_size": 0}


def test_masses_of_wrong_fields_cost_no_masses_of_errors() -> None:
    many = {str(number): None for number in range(100_000)}
    bodies: list[dict[str, Any]] = [{"inputs": [image_input()], "parameters": many}, {"inputs": [{}] * 100_000}, many]
    for body in bodies:
        refused(ask(Parts(), "POST", "/v2/models/unet/infer", json=body), 400)
    refused(ask(Parts(), "POST", "/v2/models/llama/generate", json={"text_input": "a", "parameters": many}), 400)
