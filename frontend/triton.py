"""The only client of Triton.

Triton's own HTTP statuses are not trusted: an error is whatever has the key ``error``, and its text says which one
(:func:`common.errors.from_text`). Nothing here waits without a limit on the way in; how long an inference may take is
the caller's deadline, everything else has a limit of its own, and a cancelled caller closes its socket at once.
"""

import io
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from numpy.typing import NDArray
from yarl import URL

from common.errors import InternalFault, InvalidRequest, NotReady, RequestError, UpstreamBroken, from_text
from common.wire import CanaryResult, CancelOutcome, CancelReply, Control, EngineStatus, Op, SnapshotReply
from frontend import record, tensors, tracing
from frontend.offload import LARGE_BYTES, offload
from frontend.repository import SILENCE, Repository
from frontend.sse import EventReader, parse_object
from frontend.tritonserver import ADMIN_HEADER

CONNECT_S = 2.0
CONTROL_S = 3.0
"""An engine answers a control message within a step; longer means that it hangs."""
LOAD_S = 600.0
UNLOAD_S = 60.0
_DEAD_PROCESS = re.compile(r"Stub process .* is not healthy")
"""What Triton says, with a status that varies, for a model whose process has died."""
_REFUSED = re.compile(r"load / unload is not allowed|(API|protocol) is restricted")
"""What Triton says where models cannot be loaded by anybody, or not by us."""
_UNREACHABLE = "the model server cannot be reached: nobody listens there"

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Reply:
    """An answer of Triton, as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Triton:
    """Triton's HTTP port at `base_url` (``http://127.0.0.1:8000``)."""

    def __init__(
        self,
        base_url: str,
        admin_key: str | None = None,
        control_s: float = CONTROL_S,
        grpc_address: str | None = None,
    ) -> None:
        """`grpc_address`: where models are loaded; without it over HTTP, which holds up what shares its thread."""
        self._base_url = base_url.rstrip("/")
        self._admin = {ADMIN_HEADER: admin_key} if admin_key else {}
        self._control_s = control_s
        self._repository = Repository(grpc_address, ADMIN_HEADER, admin_key) if grpc_address else None
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Opens the pool of connections; on the event loop that will use it."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            skip_auto_headers=("Accept-Encoding", "User-Agent"),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        if self._repository is not None:
            await self._repository.start()

    async def close(self) -> None:
        """Closes every connection; Triton's own shutdown waits for them."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._repository is not None:
            await self._repository.close()

    async def live(self) -> bool:
        """Whether something answers that says it lives."""
        try:
            return (await self._bounded("GET", "/v2/health/live", None, CONTROL_S)).status == 200
        except RequestError:
            return False

    async def load(self, model: str) -> None:
        """Loads the model; minutes. One that is loaded is left as it is, even where its process has died."""
        if self._repository is not None:
            await self._repository.load(model, LOAD_S)
        else:
            object_of(await self._bounded("POST", f"/v2/repository/models/{model}/load", {}, LOAD_S, self._admin))

    async def unload(self, model: str) -> None:
        """Unloads the model, whose process may have died; what is left of that process ends."""
        if self._repository is not None:
            await self._repository.unload(model, UNLOAD_S)
        else:
            object_of(await self._bounded("POST", f"/v2/repository/models/{model}/unload", {}, UNLOAD_S, self._admin))

    async def look_up(self, path: str) -> Reply:
        """What a GET of `path`, percent-encoded, says of the server or a model: at once, or UpstreamBroken."""
        return await self._bounded("GET", path, None, self._control_s)

    async def control(self, model: str, message: Control, limit_s: float | None = None) -> str:
        """The engine's answer to a control message, as JSON text."""
        path = f"/v2/models/{model}/generate"
        body = {"control": message.to_json()}
        answer = object_of(await self._bounded("POST", path, body, limit_s or self._control_s))
        text = answer.get("control")
        if not isinstance(text, str):
            raise UpstreamBroken(f"{model} did not answer the control message {message.op}")
        return text

    async def status(self, model: str) -> EngineStatus:
        """What the engine says of itself."""
        return strictly(EngineStatus.from_json, await self.control(model, Control(Op.STATUS)))

    async def cancel(self, model: str, lease_id: str) -> CancelOutcome:
        """Asks the engine to stop the work of a lease."""
        return strictly(CancelReply.from_json, await self.control(model, Control(Op.CANCEL, lease_id))).outcome

    async def canary(self, model: str, limit_s: float) -> CanaryResult:
        """Has the engine compute a known answer, the way it computes those of clients."""
        return strictly(CanaryResult.from_json, await self.control(model, Control(Op.CANARY), limit_s))

    async def snapshot(self, model: str) -> str:
        """Has the engine write a snapshot; returns its path on the engine's machine."""
        return strictly(SnapshotReply.from_json, await self.control(model, Control(Op.SNAPSHOT))).path

    async def generate_stream(self, model: str, inputs: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The events of one request, the last of them with a ``statement``.

        Raises what the engine said, and UpstreamBroken where the stream breaks off. Close the iterator (or cancel the
        task in it) to close the socket.
        """
        reader = EventReader()
        complete = False
        async with self._request(
            "POST", f"/v2/models/{model}/generate_stream", json=dict(inputs) | _request_id()
        ) as response:
            if response.content_type != "text/event-stream":
                object_of(await _read(response))
                raise UpstreamBroken(f"{model} did not answer with a stream")
            async for data in response.content.iter_any():
                for event in reader.feed(data):
                    _raise_error(event, response.status)
                    complete = complete or bool(event.get("statement"))
                    yield event
        if not complete:
            raise UpstreamBroken(f"the answer of {model} broke off")

    async def infer(
        self, model: str, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """One inference with binary tensors; strings are object arrays of bytes. Raises what the engine said."""
        size_bytes = sum(tensors.size_bytes(array) for array in inputs.values())
        body, headers = await offload(size_bytes, tensors.pack, inputs, outputs, record.current().request_id)
        reply = await self.forward("POST", f"/v2/models/{model}/infer", headers, body)
        if reply.status != 200:
            raise _error_of(parse_object(reply.body), reply.status)
        return await offload(len(reply.body), tensors.unpack, reply.body, reply.headers, outputs)

    async def forward(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Reply:
        """One request as it is, `path` already percent-encoded, and its answer as it is, errors included."""
        data = io.BytesIO(body) if body and len(body) >= LARGE_BYTES else body
        async with self._request(method, path, headers=headers, data=data) as response:
            return await _read(response)

    async def _bounded(
        self, method: str, path: str, body: Any, limit_s: float, headers: Mapping[str, str] | None = None
    ) -> Reply:
        timeout = aiohttp.ClientTimeout(total=limit_s, sock_connect=CONNECT_S)
        async with self._request(method, path, json=body, headers=headers, timeout=timeout) as response:
            return await _read(response)

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer whose body is still to be read; left early, its socket is closed, not kept."""
        if self._session is None:
            raise InternalFault("the client of the model server is not started")
        url = URL(self._base_url + path, encoded=True)
        try:
            headers = dict(headers or {}) | tracing.headers()
            async with self._session.request(
                method, url, headers=headers, allow_redirects=False, **options
            ) as response:
                yield response
        except TimeoutError:
            raise UpstreamBroken(SILENCE) from None
        except aiohttp.ClientConnectorError:
            raise NotReady(_UNREACHABLE, retry_after_s=1.0) from None
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamBroken(f"the model server cannot be reached: {type(error).__name__}") from None


def _request_id() -> dict[str, str]:
    """What makes the current request's id that of the model server."""
    request_id = record.current().request_id
    return {"id": request_id} if request_id else {}


async def _read(response: aiohttp.ClientResponse) -> Reply:
    return Reply(response.status, response.headers, await response.read())


def object_of(reply: Reply) -> dict[str, Any]:
    """The JSON object of an answer that has to be one; {} for an empty body. Raises what it says went wrong."""
    answer = parse_object(reply.body) if reply.body or reply.status != 200 else {}
    _raise_error(answer, reply.status)
    return answer


def _raise_error(answer: Mapping[str, Any], status: int) -> None:
    if "error" in answer or status != 200:
        raise _error_of(answer, status)


def _error_of(answer: Mapping[str, Any], status: int) -> RequestError:
    """The engine's own error; else by Triton's status, which is good for what it refused before the engine saw it."""
    text = str(answer.get("error", f"HTTP status {status}"))
    error = from_text(text)
    if type(error) is UpstreamBroken and (status == 503 or _DEAD_PROCESS.search(text)):
        return NotReady(f"the model server is not ready: {text}", retry_after_s=1.0)
    return error


def is_dead(error: RequestError) -> bool:
    """Whether the error says that the model's process has died."""
    return _DEAD_PROCESS.search(error.message) is not None


def is_unreachable(error: RequestError) -> bool:
    """Whether nothing was sent, because no server listens."""
    return error.message == _UNREACHABLE


def is_silence(error: RequestError) -> bool:
    """Whether nothing was answered at all, within the time there was."""
    return error.message == SILENCE


def is_refusal(error: RequestError) -> bool:
    """Whether the server does not let us load and unload, now or later."""
    return _REFUSED.search(error.message) is not None


def strictly(read: Callable[[str | bytes], Answer], text: str | bytes) -> Answer:
    """An engine's answer read by the wire's rules; what does not keep to them is the engine's fault, not a caller's."""
    try:
        return read(text)
    except InvalidRequest as error:
        raise UpstreamBroken(f"an engine's answer is not understood: {error.message}") from None
