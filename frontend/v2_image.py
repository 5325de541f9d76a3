"""The segmentation model as KServe v2 clients see it: what the header says, the lease put in, the statement taken out.

Tensor bytes go through as they are, both ways.
"""

from collections.abc import Mapping

import numpy as np

from common import image_header
from common.errors import InvalidRequest, NeverFits, UpstreamBroken
from common.wire import Statement, UnetLimits
from frontend.runs import ImageJob
from frontend.tensors import HEADER_LENGTH
from frontend.v2 import InferRequest, WireBody, join, split
from frontend.v2_tensor import Input, Output
from frontend.v2_text import refuse_reserved

MAX_JSON_VALUES = 2**20
"""Most numbers of one output as JSON text: a megapixel of mask."""
_DATATYPES: Mapping[str, str] = {"image": "UINT8", "encoded": "BYTES", "threshold": "FP32"}
_OUTPUTS = ("mask", "probabilities")


def read_job(request: InferRequest, limits: UnetLimits) -> ImageJob:
    """What is asked for, checked and with the size that decides its price; blocking, but never decodes the image.

    Raises InvalidRequest, Forbidden (`lease`, `control`, `statement`), NeverFits (too many pixels).
    """
    refuse_reserved(request.names)
    inputs = request.inputs
    for tensor in request.header.inputs:
        _check_datatype(tensor)
    if ("image" in inputs) == ("encoded" in inputs):
        raise InvalidRequest("give either input 'image' (UINT8 [H, W, 3]) or 'encoded' (BYTES [1])")
    threshold = _read_threshold(request, inputs["threshold"], limits) if "threshold" in inputs else None
    probabilities = "probabilities" in [output.name for output in request.header.outputs]
    if "image" in inputs:
        job = _raw_job(request, inputs["image"], limits, threshold, probabilities)
    else:
        job = _encoded_job(request, inputs["encoded"], limits, threshold, probabilities)
    _check_outputs(request, job, limits)
    return job


def add_lease(request: InferRequest, lease: str) -> WireBody:
    """The request for the engine: outputs named, the lease among the inputs, the statement among the outputs. Blocking.

    The engine computes an output when it is named; a request that names none gets the mask.
    """
    inputs = [tensor.model_dump(exclude_none=True) for tensor in request.header.inputs]
    inputs.append({"name": "lease", "shape": [1], "datatype": "BYTES", "data": [lease]})
    outputs = [output.model_dump() for output in _wanted(request)]
    outputs.append({"name": "statement", "parameters": {"binary_data": False}})
    about = {"id": request.header.id} if request.header.id else {}
    return join(about | {"inputs": inputs, "outputs": outputs}, [request.binary] if request.raw else None)


def take_statement(headers: Mapping[str, str], body: bytes) -> tuple[Statement, WireBody]:
    """The statement out of the engine's answer, and the answer without it; raises UpstreamBroken. Blocking."""
    length = headers.get(HEADER_LENGTH)
    header, binary = split(body, length)
    outputs = header.get("outputs")
    try:
        mine = next(output for output in outputs if output["name"] == "statement")  # type: ignore[union-attr]
        statement = Statement.from_json(mine["data"][0])
    except (TypeError, KeyError, IndexError, StopIteration, InvalidRequest):
        raise UpstreamBroken("the segmentation model gave no statement") from None
    header["outputs"] = [output for output in outputs or () if output is not mine]
    return statement, join(header, None if length is None else [binary])


def _wanted(request: InferRequest) -> list[Output]:
    return request.header.outputs or [Output(name="mask", parameters={"binary_data": request.binary_by_default})]


def _check_datatype(tensor: Input) -> None:
    datatype = _DATATYPES.get(tensor.name)
    if datatype is None:
        raise InvalidRequest(f"input {tensor.name!r}: there is {', '.join(_DATATYPES)}", param=tensor.name)
    if tensor.datatype != datatype:
        raise InvalidRequest(f"input {tensor.name!r} is {datatype}, not {tensor.datatype}", param=tensor.name)
    if tensor.name != "image" and tensor.shape != [1]:
        raise InvalidRequest(f"input {tensor.name!r} has shape [1], not {tensor.shape}", param=tensor.name)


def _read_threshold(request: InferRequest, tensor: Input, limits: UnetLimits) -> float:
    if limits.classes > 1:
        raise InvalidRequest(
            f"threshold: the model has {limits.classes} classes, the likeliest wins", param="threshold"
        )
    threshold = float(request.values(tensor)[0])
    if not 0 < threshold < 1:
        raise InvalidRequest("threshold must be above 0 and below 1", param="threshold")
    return threshold


def _raw_job(
    request: InferRequest, tensor: Input, limits: UnetLimits, threshold: float | None, probabilities: bool
) -> ImageJob:
    if len(tensor.shape) != 3 or tensor.shape[2] != 3 or 0 in tensor.shape:
        raise InvalidRequest(f"input 'image' has shape [H, W, 3], not {tensor.shape}", param="image")
    height, width, _ = tensor.shape
    if height * width > limits.max_pixels:
        raise NeverFits(
            f"the image has {height * width} pixels, at most {limits.max_pixels} are accepted",
            param="image",
            numbers={"pixels": height * width, "max_pixels": limits.max_pixels},
        )
    raw = request.raw.get(tensor.name)
    elements = np.array(request.values(tensor), np.uint8) if raw is None else np.frombuffer(raw, np.uint8)
    image = elements.reshape(height, width, 3)
    return ImageJob(height, width, image=image, threshold=threshold, probabilities=probabilities)


def _encoded_job(
    request: InferRequest, tensor: Input, limits: UnetLimits, threshold: float | None, probabilities: bool
) -> ImageJob:
    (encoded,) = request.values(tensor)
    if tensor.name not in request.raw:
        raise InvalidRequest("input 'encoded' must come as binary data: JSON cannot carry an image", param="encoded")
    header = image_header.read(encoded, limits.max_pixels)
    return ImageJob(header.height, header.width, encoded=encoded, threshold=threshold, probabilities=probabilities)


def _check_outputs(request: InferRequest, job: ImageJob, limits: UnetLimits) -> None:
    for output in _wanted(request):
        if output.name not in _OUTPUTS:
            raise InvalidRequest(f"output {output.name!r}: there is {', '.join(_OUTPUTS)}", param="outputs")
        if output.parameters.keys() - {"binary_data"}:
            raise InvalidRequest(f"output {output.name!r}: only binary_data can be set", param="outputs")
        count = job.height * job.width * (limits.classes if output.name == "probabilities" else 1)
        if not output.binary and count > MAX_JSON_VALUES:
            raise InvalidRequest(
                f"output {output.name!r} has {count} numbers, at most {MAX_JSON_VALUES} are sent as JSON: "
                "ask for it as binary data",
                param="outputs",
            )
