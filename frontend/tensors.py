"""Arrays <-> the bodies of ``/v2/models/…/infer``, by the helpers of tritonclient; blocking."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tritonclient.http as client
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

from common.errors import UpstreamBroken

HEADER_LENGTH = "Inference-Header-Content-Length"


def pack(
    inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str], request_id: str = ""
) -> tuple[bytes, dict[str, str]]:
    """Body and HTTP headers of an inference with binary tensors both ways; strings are object arrays of bytes."""
    tensors = []
    for name, array in inputs.items():
        tensor = client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensors.append(tensor.set_data_from_numpy(array, binary_data=True))
    wanted = [client.InferRequestedOutput(name, binary_data=True) for name in outputs]
    body, header_length = client.InferenceServerClient.generate_request_body(
        tensors, outputs=wanted, request_id=request_id
    )
    headers = {"Content-Type": "application/octet-stream"}
    return body, headers if header_length is None else headers | {HEADER_LENGTH: str(header_length)}


def unpack(body: bytes, headers: Mapping[str, str], outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The outputs of an answer, read-only views of `body`; raises UpstreamBroken where one is missing or malformed."""
    try:
        header_length = headers.get(HEADER_LENGTH)
        result = client.InferenceServerClient.parse_response_body(
            body, header_length=None if header_length is None else int(header_length)
        )
        arrays = {name: result.as_numpy(name) for name in outputs}
    except Exception as error:  # tritonclient's reader trusts its input, and stumbles in its own ways
        raise UpstreamBroken(f"the model server's answer is not in KServe v2 form: {type(error).__name__}") from None
    missing = [name for name, array in arrays.items() if array is None]
    if missing:
        raise UpstreamBroken(f"the model server's answer lacks {', '.join(missing)}")
    return arrays


def size_bytes(array: NDArray[Any]) -> int:
    """Bytes of the array's elements, strings included."""
    return sum(len(item) for item in array.flat) if array.dtype == np.object_ else array.nbytes
