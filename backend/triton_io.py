"""pb_utils tensors to plain arrays and back; nothing else in the backend knows Triton.

``pb_utils`` is handed in, since it exists only inside Triton's stub. Two facts of Triton shape this file: over HTTP a
client's leaving is noticed only after a first response byte, hence the greeting; and the status of a stream's first
error is not to be trusted, hence the code in the error's text.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from backend.control import Desk
from backend.engine import Engine
from backend.outbox import Outbox
from common import logs
from common.errors import InternalFault, InvalidRequest, NotReady, RequestError
from common.wire import Breaker, Lease, Statement

log = logging.getLogger(__name__)

Request = TypeVar("Request")
Result = TypeVar("Result")
Arrays = Mapping[str, NDArray[Any]]


class Adapter(Protocol[Request, Result]):
    """What is particular to one model: its inputs, its outputs, its way of answering."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the input tensors, `lease` and `control` aside."""

    @property
    def engine(self) -> Engine[Request, Result]:
        """The engine behind the model."""

    def parse(self, inputs: Arrays, lease: Lease | None, wanted: frozenset[str]) -> Request:
        """The request in the engine's terms; `wanted` are the output names asked for. Raises RequestError."""

    def streams(self, inputs: Arrays, lease: Lease | None) -> bool:
        """Whether the answer starts with a greeting and comes in parts; else it is one response."""

    def greeting(self) -> Arrays:
        """The empty first response of a stream."""

    def key(self, result: Result) -> int:
        """Which waiting results may be joined."""

    def join(self, first: Result, second: Result) -> Result:
        """One result of two with the same key."""

    def tensors(self, results: list[Result]) -> Arrays:
        """The outputs that spell these results; several only where they go in one response."""


class Host(Generic[Request, Result]):
    """Takes requests from Triton, hands them to the engine, answers through response senders."""

    def __init__(self, pb_utils: Any, adapter: Adapter[Request, Result], desk: Desk) -> None:
        self._pb = pb_utils
        self._adapter = adapter
        self._desk = desk
        self._outbox: Outbox[Result] = Outbox(adapter.key, adapter.join, adapter.engine.cancel)

    def accept(self, pb_request: Any) -> None:
        """Starts one request and returns; never raises, every path answers and ends the response."""
        port = Port(self._pb, pb_request.get_response_sender(), self._adapter)
        try:
            self._start(pb_request, port)
        except RequestError as error:
            log.info("refused: %s", error.kind.prefix, extra={logs.REQUEST: pb_request.request_id()})
            self._refuse(port, error)
        except Exception:
            log.exception("a request could not be started", extra={logs.REQUEST: pb_request.request_id()})
            self._refuse(port, InternalFault("the request could not be started; see the server's log"))

    def is_ready(self) -> bool:
        """For Triton versions that ask."""
        return self._desk.status().ready

    def close(self) -> None:
        """Sends what is queued and ends the threads."""
        self._outbox.close()

    def _start(self, pb_request: Any, port: "Port[Result]") -> None:
        control = self._read(pb_request, ("control",)).get("control")
        if control is not None:
            self._instruct(_only_string("control", control), port)
            return
        if self._desk.breaker == Breaker.OPEN:
            raise NotReady("the breaker is open: too little headroom on the card", retry_after_s=1.0)
        inputs = self._read(pb_request, (*self._adapter.inputs, "lease"))
        lease_json = inputs.pop("lease", None)
        lease = None if lease_json is None else Lease.from_json(_only_string("lease", lease_json))
        request = self._adapter.parse(inputs, lease, frozenset(pb_request.requested_output_names()))
        streams = self._adapter.streams(inputs, lease)
        channel = self._outbox.channel(port, gather=not streams)
        work_id = self._adapter.engine.submit(request, channel)
        log.info("accepted", extra={logs.REQUEST: pb_request.request_id(), logs.FIELDS: {"lease": work_id}})
        try:
            if streams:
                port.respond(self._adapter.greeting())
        except Exception:
            self._adapter.engine.cancel(work_id)
            raise
        channel.begin(work_id)

    def _instruct(self, message: bytes, port: "Port[Result]") -> None:
        """Answers a control message: at once, or from a thread of its own where that takes its time."""
        if self._desk.waits(message):
            threading.Thread(target=self._reply, args=(message, port), name="control", daemon=True).start()
        else:
            self._reply(message, port)

    def _reply(self, message: bytes, port: "Port[Result]") -> None:
        try:
            port.reply({"control": strings(self._desk.answer(message))})
        except RequestError as error:
            self._refuse(port, error)
        except Exception:
            log.exception("a control message could not be answered")
            self._refuse(port, InternalFault("the control message could not be answered; see the server's log"))

    def _refuse(self, port: "Port[Result]", error: RequestError) -> None:
        try:
            port.send([], None, error)
        except Exception:
            log.exception("a refusal could not be sent")

    def _read(self, pb_request: Any, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
        tensors = {name: self._pb.get_input_tensor_by_name(pb_request, name) for name in names}
        return {name: tensor.as_numpy() for name, tensor in tensors.items() if tensor is not None}


class Port(Generic[Result]):
    """A response sender. Sends and looks at cancellation may come from different threads, so a lock orders them."""

    def __init__(self, pb_utils: Any, sender: Any, adapter: Adapter[Any, Result]) -> None:
        self._pb = pb_utils
        self._sender = sender
        self._adapter = adapter
        self._lock = threading.Lock()
        self._ended = False

    def send(self, results: list[Result], statement: Statement | None, error: RequestError | None) -> None:
        """Sends results; with a statement or an error the response is complete."""
        if error is not None:
            code = getattr(self._pb.TritonError, error.kind.triton_code)
            self._send(self._pb.InferenceResponse([], self._pb.TritonError(error.to_text(), code)), final=True)
            return
        arrays = dict(self._adapter.tensors(results)) if results else {}
        if statement is not None:
            arrays["statement"] = strings(statement.to_json())
        self._send(self._response(arrays), final=statement is not None)

    def respond(self, arrays: Arrays) -> None:
        """Sends one response of a stream."""
        self._send(self._response(arrays), final=False)

    def reply(self, arrays: Arrays) -> None:
        """Sends the only response."""
        self._send(self._response(arrays), final=True)

    def is_cancelled(self) -> bool:
        """Whether the client has left; False once the response is complete."""
        with self._lock:
            return not self._ended and bool(self._sender.is_cancelled())

    def _response(self, arrays: Arrays) -> Any:
        return self._pb.InferenceResponse([self._pb.Tensor(name, array) for name, array in arrays.items()])

    def _send(self, response: Any, *, final: bool) -> None:
        flags = self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        with self._lock:
            self._ended = self._ended or final
            self._sender.send(response, flags=flags)


def strings(*texts: str) -> NDArray[Any]:
    """A STRING tensor [len(texts)]."""
    return np.array([text.encode() for text in texts], dtype=np.object_)


def _only_string(name: str, array: NDArray[Any]) -> bytes:
    if array.dtype != np.object_ or array.size != 1:
        raise InvalidRequest(f"{name}: exactly one string", param=name)
    return bytes(array.reshape(-1)[0])
