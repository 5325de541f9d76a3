"""The language model as KServe v2 clients see it: its inputs as tensors or JSON keys, its answers as outputs.

Names and forms are those of Triton's LLM backends (``text_input``, ``text_output``, ``stream``). Outputs have one
element per sequence of the answer; ``token_ids`` are those of all sequences, one after the other.
"""

import json
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from common.errors import BodyTooLarge, Forbidden, InvalidRequest
from frontend import runs
from frontend.forms import Form, parse_json, unsupported
from frontend.runs import TextChunk
from frontend.sampling_form import SamplingForm
from frontend.v2 import InferRequest, WireBody, join
from frontend.v2_tensor import Input, Output, to_raw

INPUTS: Mapping[str, str] = {
    "text_input": "BYTES",
    "input_ids": "INT32",
    "max_tokens": "INT32",
    "n": "INT32",
    "temperature": "FP32",
    "top_p": "FP32",
    "top_k": "INT32",
    "repetition_penalty": "FP32",
    "logprobs": "INT32",
    "seed": "INT64",
    "stop": "BYTES",
    "stream": "BOOL",
}
"""Input -> datatype."""
LISTS = frozenset({"input_ids", "stop"})
"""Inputs of any length; every other has one element."""
OUTPUTS: Mapping[str, str] = {
    "text_output": "BYTES",
    "token_ids": "INT32",
    "index": "INT32",
    "logprobs": "BYTES",
    "finish_reason": "BYTES",
}
"""Output -> datatype, in the order of an answer."""
MAX_TEXT_BYTES = 4 * 2**20
"""Most bytes of binary tensors: each element becomes a Python value. A context of 128 Ki tokens is half a megabyte."""
RESERVED = frozenset({"lease", "control", "statement"})
"""Tensors between us and the engines."""


class TextForm(SamplingForm):
    """A text request, whichever way its fields came."""

    text_input: str | None = None
    input_ids: Annotated[list[int], Field(fail_fast=True)] | None = None
    logprobs: int | None = Field(None, ge=0)
    """How many alternatives per token."""
    stream: bool | None = None
    exclude_input_in_output: Annotated[None, unsupported(True)] = None
    """Known from Triton's LLM backends; the answer never repeats the prompt."""
    bad_words: Annotated[None, unsupported("", [])] = None
    stop_words: Annotated[None, unsupported("", [])] = None

    @property
    def prompt(self) -> str | list[int]:
        """Text or token ids; raises InvalidRequest where it is not exactly one of them."""
        if self.text_input is not None and self.input_ids is None:
            return self.text_input
        if self.input_ids is not None and self.text_input is None:
            return self.input_ids
        raise InvalidRequest("give either text_input or input_ids", param="text_input")

    @model_validator(mode="before")
    @classmethod
    def _take_single_elements(cls, fields: Any) -> Any:
        """Triton takes a scalar for a list of one and the other way round."""
        if not isinstance(fields, dict):
            return fields
        return {name: _as_scalar(value) if name not in LISTS else value for name, value in fields.items()}

    @field_validator("input_ids", mode="before")
    @classmethod
    def _wrap(cls, value: Any) -> Any:
        return [value] if type(value) is int else value


class GenerateBody(Form):
    """The JSON of ``generate`` and ``generate_stream``: fields stand at the top or in ``parameters``."""

    model_config = ConfigDict(extra="allow")

    id: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)


def read_generate(body: bytes) -> tuple[TextForm, str]:
    """The request in a ``generate`` body, and its id; raises InvalidRequest, Forbidden."""
    envelope = parse_json(body, GenerateBody)
    top = envelope.model_extra or {}
    twice = sorted(top.keys() & envelope.parameters.keys())
    if twice:
        raise InvalidRequest(f"{twice[0]}: given at the top and in parameters", param=twice[0])
    return _read(top | envelope.parameters), envelope.id


def read_infer(request: InferRequest) -> TextForm:
    """The request in the tensors of an ``infer`` body; blocking if it is large.

    Raises InvalidRequest, Forbidden, BodyTooLarge (more than MAX_TEXT_BYTES).
    """
    refuse_reserved(request.names)
    if len(request.binary) > MAX_TEXT_BYTES:
        raise BodyTooLarge(
            f"the tensors have {len(request.binary)} bytes, at most {MAX_TEXT_BYTES} are read as text or token ids",
            numbers={"max_text_bytes": MAX_TEXT_BYTES},
        )
    for output in request.header.outputs:
        if output.name not in OUTPUTS:
            raise InvalidRequest(f"output {output.name!r}: there is {', '.join(OUTPUTS)}", param="outputs")
        if output.parameters.keys() - {"binary_data"}:
            raise InvalidRequest(f"output {output.name!r}: only binary_data can be set", param="outputs")
    return _read({tensor.name: _field(request, tensor) for tensor in request.header.inputs})


def refuse_reserved(names: list[str]) -> None:
    """Raises Forbidden if one of `names` is a tensor between us and the engines."""
    for name in names:
        if name in RESERVED:
            raise Forbidden(f"{name!r} is not for clients", param=name)


@dataclass(frozen=True)
class Sequences:
    """Pieces of an answer, at most one per sequence, by index."""

    parts: tuple[TextChunk, ...]

    def values(self) -> dict[str, list[Any]]:
        """Output -> its elements, strings as text; outputs that have nothing to say are left out."""
        values: dict[str, list[Any]] = {
            "text_output": [part.text for part in self.parts],
            "token_ids": [token for part in self.parts for token in part.token_ids],
            "index": [part.index for part in self.parts],
        }
        if any(part.logprobs for part in self.parts):
            values["logprobs"] = [json.dumps(part.logprobs or []) for part in self.parts]
        if any(part.finish_reason for part in self.parts):
            values["finish_reason"] = [part.finish_reason or "" for part in self.parts]
        return values


async def gather(run: AsyncIterable[TextChunk]) -> Sequences:
    """All chunks of a run, joined."""
    return Sequences(await runs.gather(run))


def to_generated(answer: Sequences, request_id: str) -> dict[str, Any]:
    """The answer in the JSON of ``generate``, where a list of one is written without its brackets."""
    about = {"id": request_id} if request_id else {}
    outputs = {name: values[0] if len(values) == 1 else values for name, values in answer.values().items()}
    return about | {"model_name": "llama", "model_version": "1"} | outputs


def to_inferred(answer: Sequences, request: InferRequest) -> WireBody:
    """The answer of ``infer``: the outputs that were asked for, or all, each binary or JSON as it was asked for."""
    values = answer.values()
    default = [Output(name=name, parameters={"binary_data": request.binary_by_default}) for name in OUTPUTS]
    outputs: list[dict[str, Any]] = []
    pieces: list[bytes] = []
    for wanted in request.header.outputs or default:
        if wanted.name not in values:
            continue
        elements, datatype = values[wanted.name], OUTPUTS[wanted.name]
        output: dict[str, Any] = {"name": wanted.name, "datatype": datatype, "shape": [len(elements)]}
        if wanted.binary:
            pieces.append(to_raw(datatype, [_encode(element) for element in elements]))
            output["parameters"] = {"binary_data_size": len(pieces[-1])}
        else:
            output["data"] = elements
        outputs.append(output)
    about = {"id": request.header.id} if request.header.id else {}
    return join(about | {"model_name": "llama", "model_version": "1", "outputs": outputs}, pieces or None)


def _read(fields: Mapping[str, Any]) -> TextForm:
    """Both ways end here, as JSON, so that one set of rules and messages holds for both."""
    refuse_reserved(list(fields))
    return parse_json(json.dumps(fields).encode(), TextForm)


def _field(request: InferRequest, tensor: Input) -> Any:
    datatype = INPUTS.get(tensor.name)
    if datatype is None:
        raise InvalidRequest(f"input {tensor.name!r}: there is {', '.join(INPUTS)}", param=tensor.name)
    if tensor.datatype != datatype:
        raise InvalidRequest(f"input {tensor.name!r} is {datatype}, not {tensor.datatype}", param=tensor.name)
    is_list = tensor.name in LISTS
    if len(tensor.shape) != 1 or not (is_list or tensor.shape == [1]):
        shape = "[-1]" if is_list else "[1]"
        raise InvalidRequest(f"input {tensor.name!r} has shape {shape}, not {tensor.shape}", param=tensor.name)
    values = request.values(tensor)
    try:
        plain = [value.decode() if isinstance(value, bytes) else value for value in values]
    except UnicodeDecodeError:
        raise InvalidRequest(f"input {tensor.name!r} is not UTF-8 text", param=tensor.name) from None
    return plain if is_list else plain[0]


def _as_scalar(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _encode(element: Any) -> Any:
    return element.encode() if isinstance(element, str) else element
