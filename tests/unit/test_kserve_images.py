import gzip
import io
import json
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tritonclient.http as client
from PIL import Image

from common.errors import NotNow
from frontend.runs import ImageJob
from frontend.tensors import HEADER_LENGTH
from tests.unit.fake_parts import TILES, Parts, mask_of
from tests.unit.v2_kit import IMAGE, ask, image_input, infer, names, refused, strings, text_input, written


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
