"""One tensor of a KServe v2 message: its description in the JSON header, and its elements as Python values.

An element of type BYTES in binary form is its length (uint32, little endian) and its bytes.
"""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from common.errors import InvalidRequest
from frontend.forms import Form

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
    "BYTES",
]  # fmt: skip
Few = Field(max_length=64, fail_fast=True)
"""For lists: no request has more, and each wrong element would cost an error."""

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}


def _check_parameters(value: Any) -> Any:
    """Before pydantic, which would make an error of every value that is wrong."""
    if isinstance(value, dict) and len(value) > 64:
        raise PydanticCustomError("too_many_fields", "more than 64 parameters")
    return value


Parameters = Annotated[dict[str, bool | int | float | str], BeforeValidator(_check_parameters)]


class Input(Form):
    """An input tensor: as described in the header, and its elements where they are in JSON."""

    name: str = Field(min_length=1)
    shape: Annotated[list[Annotated[int, Field(ge=0)]], Few]
    datatype: Datatype
    parameters: Parameters = Field(default_factory=dict)
    data: list[Any] | None = None
    """Elements in JSON, flat or nested; None when they are binary."""

    @property
    def count(self) -> int:
        """Number of elements by the shape."""
        return math.prod(self.shape)

    def check_size(self, size_bytes: int) -> None:
        """Raises InvalidRequest if the tensor cannot have so many bytes in binary form; BYTES has no fixed size."""
        dtype = _DTYPES.get(self.datatype)
        if dtype is not None and size_bytes != self.count * dtype.itemsize:
            raise InvalidRequest(
                f"input {self.name!r} has {size_bytes} bytes, {self.datatype} of shape {self.shape} has "
                f"{self.count * dtype.itemsize}",
                param=self.name,
            )

    def values(self, raw: memoryview | None) -> list[Any]:
        """The elements as Python values, BYTES as bytes, out of `raw` or, where it is None, out of the JSON.

        Raises InvalidRequest for an element that is not of the datatype, or a count that is not the shape's.
        """
        values = list(_from_json(self) if raw is None else _from_raw(self, raw))
        if len(values) != self.count:
            raise InvalidRequest(
                f"input {self.name!r} has {len(values)} elements, its shape {self.shape} says {self.count}",
                param=self.name,
            )
        return values


class Output(Form):
    """An output the client asks for."""

    name: str = Field(min_length=1)
    parameters: Parameters = Field(default_factory=dict)

    @property
    def binary(self) -> bool:
        """Whether it is to come as binary data."""
        return self.parameters.get("binary_data") is True


def to_raw(datatype: str, values: Sequence[Any]) -> bytes:
    """Elements in binary form, row-major; BYTES elements are given as bytes."""
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(value)) + value for value in values)
    return np.asarray(values, _DTYPES[datatype]).tobytes()


def _from_raw(tensor: Input, raw: memoryview) -> Iterator[Any]:
    dtype = _DTYPES.get(tensor.datatype)
    if dtype is not None:
        return iter(np.frombuffer(raw, dtype).tolist())
    if tensor.datatype == "BYTES":
        return _strings(tensor.name, raw)
    raise InvalidRequest(f"input {tensor.name!r}: {tensor.datatype} is not read here", param=tensor.name)


def _strings(name: str, raw: memoryview) -> Iterator[bytes]:
    start = 0
    while start < len(raw):
        end = start + 4 + (struct.unpack_from("<I", raw, start)[0] if start + 4 <= len(raw) else len(raw))
        if end > len(raw):
            raise InvalidRequest(f"input {name!r}: the length of a BYTES element runs past the end", param=name)
        yield bytes(raw[start + 4 : end])
        start = end


def _from_json(tensor: Input) -> Iterator[Any]:
    """Flat elements of a JSON tensor, each checked against the datatype."""
    pending = [iter(tensor.data or ())]
    while pending:
        for value in pending[-1]:
            if isinstance(value, list):
                pending.append(iter(value))
                break
            if not _is_a(tensor.datatype, value):
                raise InvalidRequest(f"input {tensor.name!r}: an element is no {tensor.datatype}", param=tensor.name)
            yield value.encode() if tensor.datatype == "BYTES" else value
        else:
            pending.pop()


def _is_a(datatype: str, value: object) -> bool:
    """Whether a JSON value is an element of the datatype; true is no 1, and NaN is no JSON."""
    if datatype == "BYTES":
        return type(value) is str
    if datatype == "BOOL":
        return type(value) is bool
    if isinstance(value, bool) or not isinstance(value, int | float) or datatype not in _DTYPES:
        return False
    lowest, highest, is_float = _bounds(datatype)
    return (is_float or type(value) is int) and lowest <= value <= highest


@cache
def _bounds(datatype: str) -> tuple[float, float, bool]:
    """The smallest and the largest element, and whether it may have a fraction."""
    dtype = _DTYPES[datatype]
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        return -most, most, True
    limits = np.iinfo(dtype)
    return limits.min, limits.max, False
