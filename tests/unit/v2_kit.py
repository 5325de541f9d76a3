"""What the tests of ``/v2`` share: requests as tritonclient writes them, answers as it reads them."""

import asyncio
from typing import Any

import httpx
import numpy as np
import tritonclient.http as client
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

from frontend.tensors import HEADER_LENGTH
from tests.unit.fake_parts import Parts

IMAGE = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)


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


def image_input(**changes: Any) -> dict[str, Any]:
    return {"name": "image", "shape": [1, 1, 3], "datatype": "UINT8", "data": [1, 2, 3]} | changes


def text_input(name: str = "text_input", value: Any = "hi", datatype: str = "BYTES", **changes: Any) -> dict[str, Any]:
    return {"name": name, "shape": [1], "datatype": datatype, "data": [value]} | changes
