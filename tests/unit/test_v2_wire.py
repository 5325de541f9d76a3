import gzip
import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tritonclient.utils import np_to_triton_dtype

from common.errors import BodyTooLarge, Forbidden, InvalidRequest, NotNow, UnsupportedMedia, UpstreamBroken
from frontend import v2, v2_tensor
from frontend.tensors import HEADER_LENGTH

NUMBERS = st.one_of(
    st.just(np.dtype(np.bool_)),
    hnp.integer_dtypes(endianness="="),
    hnp.unsigned_integer_dtypes(endianness="="),
    hnp.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
)
ARRAYS = NUMBERS.flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else None,
    )
)


def write(arrays: dict[str, Any], binary: bool, **more: Any) -> v2.InferRequest:
    """What tritonclient writes for these inputs, parsed."""
    inputs = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array, binary_data=binary))
    body, header_bytes = triton.InferenceServerClient.generate_request_body(inputs, **more)
    return v2.parse(body, None if header_bytes is None else str(header_bytes))


@given(st.lists(ARRAYS, min_size=1, max_size=3), st.booleans())
def test_reads_every_number_tritonclient_writes(arrays: Sequence[Any], binary: bool) -> None:
    request = write({f"t{index}": array for index, array in enumerate(arrays)}, binary)
    for tensor, array in zip(request.header.inputs, arrays, strict=True):
        assert request.values(tensor) == array.ravel().tolist()
        assert tensor.shape == list(array.shape)


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_reads_every_binary_string_tritonclient_writes(strings: list[bytes]) -> None:
    array = np.empty(len(strings), dtype=object)
    array[:] = strings
    request = write({"text_input": array}, binary=True)
    assert request.values(request.inputs["text_input"]) == strings


@given(st.text(max_size=40))
def test_reads_every_json_string_tritonclient_writes(text: str) -> None:
    request = write({"text_input": np.array([text.encode()], dtype=object)}, binary=False)
    assert request.values(request.inputs["text_input"]) == [text.encode()]


def test_mixed_binary_and_json_inputs_keep_their_bytes() -> None:
    image = triton.InferInput("image", [2, 1, 3], "UINT8").set_data_from_numpy(
        np.arange(6, dtype=np.uint8).reshape(2, 1, 3)
    )
    threshold = triton.InferInput("threshold", [1], "FP32").set_data_from_numpy(
        np.array([0.25], np.float32), binary_data=False
    )
    body, header_bytes = triton.InferenceServerClient.generate_request_body([threshold, image], request_id="r1")
    request = v2.parse(body, str(header_bytes))
    assert request.header.id == "r1"
    assert request.values(request.inputs["threshold"]) == [0.25]
    assert bytes(request.binary) == bytes(range(6))


def test_request_without_outputs_wants_them_binary() -> None:
    array = np.zeros(1, np.uint8)
    assert write({"image": array}, binary=True).binary_by_default
    named = write({"image": array}, True, outputs=[triton.InferRequestedOutput("mask", binary_data=False)])
    assert not named.binary_by_default
    assert [(output.name, output.binary) for output in named.header.outputs] == [("mask", False)]


@given(st.lists(st.tuples(ARRAYS, st.booleans()), min_size=1, max_size=3))
def test_tritonclient_reads_every_answer(tensors: Sequence[tuple[Any, bool]]) -> None:
    outputs: list[dict[str, Any]] = []
    pieces: list[bytes] = []
    for index, (array, binary) in enumerate(tensors):
        datatype = np_to_triton_dtype(array.dtype)
        output: dict[str, Any] = {"name": f"t{index}", "shape": list(array.shape), "datatype": datatype}
        if binary:
            pieces.append(v2_tensor.to_raw(datatype, array.ravel().tolist()))
            output["parameters"] = {"binary_data_size": len(pieces[-1])}
        else:
            output["data"] = array.ravel().tolist()
        outputs.append(output)
    answer = v2.join({"model_name": "unet", "outputs": outputs}, pieces or None)
    length = answer.headers.get(HEADER_LENGTH)
    result = triton.InferenceServerClient.parse_response_body(
        answer.body, header_length=None if length is None else int(length)
    )
    for index, (array, _) in enumerate(tensors):
        np.testing.assert_array_equal(result.as_numpy(f"t{index}"), array)
    header, binary_rest = v2.split(answer.body, length)
    assert header["outputs"] == outputs
    assert bytes(binary_rest) == b"".join(pieces)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=4))
def test_tritonclient_reads_every_string_answer(strings: list[bytes]) -> None:
    raw = v2_tensor.to_raw("BYTES", strings)
    output = {"name": "s", "shape": [len(strings)], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
    answer = v2.join({"outputs": [output]}, [raw])
    result = triton.InferenceServerClient.parse_response_body(
        answer.body, header_length=int(answer.headers[HEADER_LENGTH])
    )
    assert result.as_numpy("s").tolist() == strings


def one(**changes: Any) -> bytes:
    """A body with one JSON input, changed."""
    return json.dumps({"inputs": [{"name": "a", "shape": [2], "datatype": "INT32", "data": [1, 2]} | changes]}).encode()


@pytest.mark.parametrize(
    ("body", "length"),
    [
        pytest.param(b"", None, id="empty"),
        pytest.param(b"{", None, id="broken JSON"),
        pytest.param(b"[]", None, id="no object"),
        pytest.param(b"{}", None, id="no inputs"),
        pytest.param(b'{"inputs": []}', None, id="empty inputs"),
        pytest.param(b"\xff\xfe", None, id="not UTF-8"),
        pytest.param(b"[" * 5000, None, id="deep nesting"),
        pytest.param(one(surprise=1), None, id="unknown key"),
        pytest.param(one(shape=[-1]), None, id="negative dimension"),
        pytest.param(one(shape=[True]), None, id="true as a dimension"),
        pytest.param(one(shape="2"), None, id="shape is text"),
        pytest.param(one(datatype="FP8"), None, id="unknown datatype"),
        pytest.param(one(data=None), None, id="no data"),
        pytest.param(one(parameters={"binary_data_size": 8}), None, id="JSON and binary"),
        pytest.param(one(parameters={"x": None}), None, id="null parameter"),
        pytest.param(one(parameters={"x": {}}), None, id="object parameter"),
        pytest.param(one() + b"xxxx", str(len(one())), id="bytes of nobody"),
        pytest.param(one(), "0", id="length 0"),
        pytest.param(one(), "-1", id="length -1"),
        pytest.param(one(), "9999", id="length beyond the body"),
        pytest.param(one(), "9" * 400, id="huge length"),
        pytest.param(one(), "½", id="length is no number"),
        pytest.param(one(), "1e3", id="length is a float"),
        pytest.param(json.dumps({"inputs": [json.loads(one())["inputs"][0]] * 2}).encode(), None, id="twice"),
    ],
)
def test_malformed_request_is_refused(body: bytes, length: str | None) -> None:
    with pytest.raises(InvalidRequest):
        v2.parse(body, length)


@pytest.mark.parametrize("size", [7, 9, -1, 2**70, True, 8.0, "8"])
def test_binary_size_that_is_not_the_shapes_is_refused(size: object) -> None:
    header = one(data=None, parameters={"binary_data_size": size})
    with pytest.raises(InvalidRequest):
        v2.parse(header + bytes(8), str(len(header)))


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("INT32", [1]),
        ("INT32", [1, 2, 3]),
        ("INT32", [1, 2.0]),
        ("INT32", [1, True]),
        ("INT32", [1, "2"]),
        ("INT32", [1, 2**31]),
        ("INT32", [1, 10**400]),
        ("INT32", [1, None]),
        ("UINT8", [1, -1]),
        ("UINT8", [1, 256]),
        ("FP32", [1, 1e300]),
        ("FP32", [1, 10**400]),
        ("FP32", [1, float("nan")]),
        ("FP32", [1, float("inf")]),
        ("FP32", [1, True]),
        ("BOOL", [1, 0]),
        ("BYTES", ["a", 1]),
        ("BF16", [1, 1]),
    ],
)
def test_json_element_of_another_type_is_refused(datatype: str, data: list[object]) -> None:
    request = v2.parse(one(datatype=datatype, data=data), None)
    with pytest.raises(InvalidRequest, match="'a'"):
        request.values(request.inputs["a"])


def test_nested_json_data_is_flattened() -> None:
    request = v2.parse(one(shape=[2, 2], data=[[1, 2], [3, [4]]]), None)
    assert request.values(request.inputs["a"]) == [1, 2, 3, 4]


@pytest.mark.parametrize("raw", [b"\x01", struct.pack("<I", 5) + b"abc", struct.pack("<I", 2**32 - 1)])
def test_string_that_runs_past_the_end_is_refused(raw: bytes) -> None:
    header = one(datatype="BYTES", shape=[1], data=None, parameters={"binary_data_size": len(raw)})
    request = v2.parse(header + raw, str(len(header)))
    with pytest.raises(InvalidRequest, match="past the end"):
        request.values(request.inputs["a"])


def test_shared_memory_is_forbidden() -> None:
    with pytest.raises(Forbidden, match="shared memory"):
        v2.parse(one(data=None, parameters={"shared_memory_region": "r", "shared_memory_byte_size": 8}), None)


def test_long_json_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(BodyTooLarge, match="binary"):
        v2.parse(b"[" * (v2.MAX_HEADER_BYTES + 1), None)


@given(st.binary(max_size=200))
def test_compressed_bodies_come_out_as_they_were(body: bytes) -> None:
    assert v2.decompress(gzip.compress(body), "gzip", 200) == body
    assert v2.decompress(zlib.compress(body), "Deflate", 200) == body
    assert v2.decompress(body, None, 0) == v2.decompress(body, "identity", 0) == body


def test_compression_bomb_stops_at_the_limit() -> None:
    with pytest.raises(BodyTooLarge) as caught:
        v2.decompress(gzip.compress(bytes(10**6)), "gzip", 1000)
    assert caught.value.numbers == {"max_body_bytes": 1000}


@pytest.mark.parametrize("body", [b"", b"plain", gzip.compress(b"abc")[:-1], gzip.compress(b"abc") + b"tail"])
def test_broken_compression_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="gzip"):
        v2.decompress(body, "gzip", 1000)


def test_unknown_compression_is_refused() -> None:
    with pytest.raises(UnsupportedMedia, match="'br'"):
        v2.decompress(b"", "br", 1000)


@pytest.mark.parametrize(("body", "length"), [(b"<html>", None), (b"[1]", None), (b"{}", "9"), (b"", None)])
def test_answer_in_no_known_form_is_the_servers_fault(body: bytes, length: str | None) -> None:
    with pytest.raises(UpstreamBroken):
        v2.split(body, length)


def test_error_reads_as_text_in_tritonclient() -> None:
    class Response:
        status_code = 429

        def read(self) -> bytes:
            body = v2.error_body(NotNow("llama.pages: 8 bytes wanted, 4 free", numbers={"price_bytes": 8}))
            return json.dumps(body).encode()

    error = triton._utils._get_error(Response())
    assert str(error) == "[429] llama.pages: 8 bytes wanted, 4 free"
    assert json.loads(Response().read()) == {
        "error": "llama.pages: 8 bytes wanted, 4 free",
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
        "price_bytes": 8,
    }
