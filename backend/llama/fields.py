"""Input tensors read strictly: the right dtype, the right shape, the right range, or a refusal that names the input."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from common.errors import InvalidRequest


class Fields:
    """The inputs of one request; every reader raises InvalidRequest for a tensor that is not what it reads."""

    def __init__(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        self._inputs = inputs

    def integer(self, name: str, low: int, high: int, *, default: int) -> int:
        """An INT32 [1] within ``low..high``."""
        value = self.optional_integer(name, low, high)
        return default if value is None else value

    def optional_integer(self, name: str, low: int, high: int, dtype: DTypeLike = np.int32) -> int | None:
        """An integer [1] within ``low..high``; None when it is not there."""
        value = self._single(name, dtype)
        if value is None:
            return None
        if not low <= int(value) <= high:
            raise InvalidRequest(f"{name}: {value} is not within {low} to {high}", param=name)
        return int(value)

    def number(self, name: str, low: float, high: float, *, default: float, above_low: bool = False) -> float:
        """A finite FP32 [1] within ``low..high``, the lower end left out with `above_low`."""
        value = self._single(name, np.float32)
        if value is None:
            return default
        number = float(value)
        if not math.isfinite(number) or not low <= number <= high or (above_low and number == low):
            raise InvalidRequest(
                f"{name}: {number} is not within {low} {'(excluded) ' * above_low}to {high}", param=name
            )
        return number

    def flag(self, name: str) -> bool:
        """A BOOL [1]; False when it is not there."""
        return bool(self._single(name, np.bool_))

    def integers(self, name: str) -> NDArray[Any] | None:
        """An INT32 [n]; None when it is not there."""
        array = self._inputs.get(name)
        if array is None:
            return None
        if array.dtype != np.int32 or array.ndim != 1:
            raise InvalidRequest(f"{name}: must be INT32 [n], not {array.dtype} {list(array.shape)}", param=name)
        return array

    def text(self, name: str) -> str | None:
        """A STRING [1]; None when it is not there."""
        value = self._single(name, np.object_)
        return None if value is None else _decode(name, value)

    def strings(self, name: str, most: int, most_chars: int) -> tuple[str, ...]:
        """A STRING [n] of at most `most` texts of 1 to `most_chars` characters each."""
        array = self._inputs.get(name)
        if array is None:
            return ()
        if array.dtype != np.object_ or array.ndim != 1 or array.size > most:
            raise InvalidRequest(
                f"{name}: must be STRING [n] with n up to {most}, not {array.dtype} {list(array.shape)}", param=name
            )
        texts = tuple(_decode(name, value) for value in array)
        if not all(1 <= len(text) <= most_chars for text in texts):
            raise InvalidRequest(f"{name}: each string must have 1 to {most_chars} characters", param=name)
        return texts

    def _single(self, name: str, dtype: DTypeLike) -> Any:
        array = self._inputs.get(name)
        if array is None:
            return None
        if array.dtype != dtype or array.shape != (1,):
            raise InvalidRequest(
                f"{name}: must be {np.dtype(dtype)} [1], not {array.dtype} {list(array.shape)}", param=name
            )
        return array[0]


def _decode(name: str, value: Any) -> str:
    if not isinstance(value, bytes):
        raise InvalidRequest(f"{name}: must be STRING", param=name)
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name}: not valid UTF-8", param=name) from None
