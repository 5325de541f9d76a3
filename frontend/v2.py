"""KServe v2 inference over HTTP, as tritonclient writes it: a JSON header, then the bytes of the binary tensors.

Header ``Inference-Header-Content-Length`` says where the JSON ends; without it the whole body is JSON. A tensor is
either in the header (``data``) or behind it (parameter ``binary_data_size``), in the order of the inputs. Tensor bytes
are only ever passed on as views.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import from_json, to_json

from common.errors import BodyTooLarge, Forbidden, InvalidRequest, RequestError, UnsupportedMedia, UpstreamBroken
from frontend.forms import Form, parse_json
from frontend.tensors import HEADER_LENGTH
from frontend.v2_tensor import Few, Input, Output, Parameters

MAX_HEADER_BYTES = 4 * 2**20
"""Longest JSON header: parsing holds up everyone else, and large tensors have the binary form."""


class Header(Form):
    """The JSON header of an inference request."""

    id: str = ""
    parameters: Parameters = Field(default_factory=dict)
    inputs: Annotated[list[Input], Few] = Field(min_length=1)
    outputs: Annotated[list[Output], Few] = Field(default_factory=list)


@dataclass(frozen=True)
class InferRequest:
    """An inference request, checked for form: names are unique, sizes add up, nothing refers to shared memory."""

    header: Header
    raw: Mapping[str, memoryview]
    """Input name -> its bytes, for the inputs that came binary."""
    binary: memoryview
    """Everything behind the header."""
    size_bytes: int
    """Of the whole body."""

    @property
    def inputs(self) -> dict[str, Input]:
        """Input by name."""
        return {tensor.name: tensor for tensor in self.header.inputs}

    @property
    def names(self) -> list[str]:
        """Of all tensors that it mentions, in and out."""
        return [tensor.name for tensor in self.header.inputs] + [output.name for output in self.header.outputs]

    @property
    def binary_by_default(self) -> bool:
        """Whether outputs are binary when none is named."""
        return self.header.parameters.get("binary_data_output") is True

    def values(self, tensor: Input) -> list[Any]:
        """The elements of an input as Python values; raises InvalidRequest, see :meth:`Input.values`."""
        return tensor.values(self.raw.get(tensor.name))


@dataclass(frozen=True)
class WireBody:
    """A body with the HTTP headers that describe it."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def decompress(body: bytes, encoding: str | None, max_bytes: int) -> bytes:
    """The body without its ``Content-Encoding``; blocking.

    Raises UnsupportedMedia, InvalidRequest (broken data), BodyTooLarge (more than `max_bytes` come out).
    """
    name = (encoding or "identity").strip().lower()
    if name == "identity":
        return body
    window_bits = {"gzip": 31, "deflate": 15}.get(name)
    if window_bits is None:
        raise UnsupportedMedia(f"content encoding {name!r}: only gzip, deflate and identity are read")
    inflater = zlib.decompressobj(window_bits)
    try:
        plain = inflater.decompress(body, max_bytes + 1)
    except zlib.error:
        raise InvalidRequest(f"the body is not valid {name} data") from None
    if len(plain) > max_bytes:
        raise BodyTooLarge(
            f"the body has more than {max_bytes} bytes when decompressed", numbers={"max_body_bytes": max_bytes}
        )
    if not inflater.eof or inflater.unused_data:
        raise InvalidRequest(f"the body is not valid {name} data")
    return plain


def parse(body: bytes, header_length: str | None) -> InferRequest:
    """Reads an inference request; `header_length` is the text of the HTTP header. Blocking if its JSON is large.

    Raises InvalidRequest, BodyTooLarge (JSON over 4 MiB), Forbidden (shared memory).
    """
    view = memoryview(body)
    length = len(view) if header_length is None else _parse_length(header_length, len(view))
    refuse_long_json(length)
    header = parse_json(bytes(view[:length]), Header)
    if len({tensor.name for tensor in header.inputs}) != len(header.inputs):
        raise InvalidRequest("an input is given twice", param="inputs")
    if len({output.name for output in header.outputs}) != len(header.outputs):
        raise InvalidRequest("an output is asked for twice", param="outputs")
    named: list[Input | Output] = [*header.inputs, *header.outputs]
    for tensor in named:
        if any(key.startswith("shared_memory") for key in tensor.parameters):
            raise Forbidden(f"{tensor.name!r}: shared memory is not for clients; send and receive the tensor itself")
    return InferRequest(header, _cut(header.inputs, view[length:]), view[length:], len(view))


def refuse_long_json(length: int) -> None:
    """Raises BodyTooLarge if so many bytes of JSON are more than is read."""
    if length > MAX_HEADER_BYTES:
        raise BodyTooLarge(
            f"the JSON has {length} bytes, at most {MAX_HEADER_BYTES} are read: send large tensors as binary data",
            numbers={"max_header_bytes": MAX_HEADER_BYTES},
        )


def split(body: bytes, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    """JSON header and binary rest of Triton's answer; raises UpstreamBroken if it is none. Blocking."""
    view = memoryview(body)
    try:
        length = len(view) if header_length is None else _parse_length(header_length, len(view))
        header = from_json(bytes(view[:length]))
    except (ValueError, InvalidRequest):
        header = None
    if not isinstance(header, dict):
        raise UpstreamBroken("the model server's answer is not in KServe v2 form")
    return header, view[length:]


def join(header: Mapping[str, Any], binary: Sequence[bytes | memoryview] | None) -> WireBody:
    """A body out of its JSON header and the bytes of its binary tensors; None says that it has none. Blocking."""
    text = to_json(header)
    if binary is None:
        return WireBody(text, {"Content-Type": "application/json"})
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return WireBody(b"".join((text, *binary)), headers)


def error_body(error: RequestError) -> dict[str, object]:
    """An error in KServe's form, where ``error`` is a text: what tritonclient puts into its exception.

    Beside it stand the other fields of :meth:`common.errors.RequestError.to_body`.
    """
    about: dict[str, object] = {"type": error.kind.type, "param": error.param, "code": error.kind.code}
    return {"error": error.message} | about | error.numbers


def _parse_length(text: str, body_bytes: int) -> int:
    length = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not 0 < length <= body_bytes:
        raise InvalidRequest(f"{HEADER_LENGTH} must be a number from 1 to the body's {body_bytes} bytes")
    return length


def _cut(inputs: Sequence[Input], binary: memoryview) -> dict[str, memoryview]:
    """Shares out the bytes behind the header; every byte must belong to an input."""
    pieces: dict[str, memoryview] = {}
    start = 0
    for tensor in inputs:
        size = tensor.parameters.get("binary_data_size")
        if (size is None) == (tensor.data is None):
            what = "no data" if size is None else "both data and binary_data_size"
            raise InvalidRequest(f"input {tensor.name!r} has {what}", param=tensor.name)
        if size is None:
            continue
        if type(size) is not int or not 0 <= size <= len(binary) - start:
            raise InvalidRequest(
                f"input {tensor.name!r}: binary_data_size is {size}, {len(binary) - start} bytes are left in the body",
                param=tensor.name,
            )
        tensor.check_size(size)
        pieces[tensor.name] = binary[start : start + size]
        start += size
    if start != len(binary):
        raise InvalidRequest(f"{len(binary) - start} bytes of the body belong to no input")
    return pieces
