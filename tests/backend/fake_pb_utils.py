"""Stands for ``triton_python_backend_utils``: just what the models use of it, with senders that remember."""

import queue
import types
from dataclasses import dataclass, field
from typing import Any

WAIT_S = 5.0


class FakeTritonError(Exception):
    """Stands for pb_utils.TritonError, codes and all."""

    INTERNAL, INVALID_ARG, UNAVAILABLE, CANCELLED, NOT_FOUND, UNSUPPORTED = range(6)

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class FakeTensor:
    name: str
    array: Any

    def as_numpy(self) -> Any:
        return self.array


@dataclass
class FakeResponse:
    tensors: list[FakeTensor]
    error: FakeTritonError | None = None

    def text(self, name: str) -> str:
        return next(bytes(t.array[0]).decode() for t in self.tensors if t.name == name)


@dataclass
class FakeSender:
    sent: "queue.Queue[tuple[FakeResponse, bool]]" = field(default_factory=queue.Queue)
    left: bool = False
    fault: Exception | None = None

    def send(self, response: FakeResponse, flags: int) -> None:
        if self.fault:
            raise self.fault
        self.sent.put((response, bool(flags)))

    def is_cancelled(self) -> bool:
        return self.left

    def next(self) -> tuple[FakeResponse, bool]:
        return self.sent.get(timeout=WAIT_S)


@dataclass
class FakeRequest:
    inputs: dict[str, Any]
    sender: FakeSender = field(default_factory=FakeSender)

    def get_response_sender(self) -> FakeSender:
        return self.sender

    def requested_output_names(self) -> list[str]:
        return ["mask"]

    def request_id(self) -> str:
        return "request-1"


PB = types.SimpleNamespace(
    TritonError=FakeTritonError,
    Tensor=FakeTensor,
    InferenceResponse=FakeResponse,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
    get_input_tensor_by_name=lambda request, name: (
        FakeTensor(name, request.inputs[name]) if name in request.inputs else None
    ),
)
