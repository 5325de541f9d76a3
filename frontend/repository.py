"""Loading and unloading of models, over the model server's gRPC port.

Over HTTP a load holds one of the server's few threads until it is done, and with it every connection that this thread
serves, whichever model it asks. gRPC has a thread of its own for such calls.
"""

import grpc
from grpc import aio

from common.errors import InternalFault, NotReady, RequestError, UpstreamBroken

SERVICE = "/inference.GRPCInferenceService/"
HEADER_PREFIX = "triton-grpc-protocol-"
"""In front of the name of a header that opens a restricted protocol."""
MODEL_NAME = b"\x12"
"""Tag of field 2, a string: ``model_name`` of RepositoryModelLoadRequest and of RepositoryModelUnloadRequest."""
SILENCE = "the model server did not answer in time"
"""What is said where nothing came back at all."""
MAX_NAME_BYTES = 127
"""Up to here a length is one byte."""


class Repository:
    """The repository of the server at `address` (``127.0.0.1:8001``)."""

    def __init__(self, address: str, header: str, admin_key: str | None) -> None:
        """`header` carries the `admin_key`."""
        self._address = address
        self._metadata = ((HEADER_PREFIX + header, admin_key),) if admin_key else ()
        self._channel: aio.Channel | None = None

    async def start(self) -> None:
        """On the event loop that will use it; does not connect yet."""
        self._channel = aio.insecure_channel(self._address)

    async def close(self) -> None:
        """Ends what is under way; a load goes on in the server."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def load(self, model: str, limit_s: float) -> None:
        """Loads a model; raises RequestError with what the server says."""
        await self._call("RepositoryModelLoad", model, limit_s)

    async def unload(self, model: str, limit_s: float) -> None:
        """Unloads a model; raises RequestError with what the server says."""
        await self._call("RepositoryModelUnload", model, limit_s)

    async def _call(self, method: str, model: str, limit_s: float) -> None:
        if self._channel is None:
            raise InternalFault("the client of the model repository is not started")
        name = model.encode()
        if len(name) > MAX_NAME_BYTES:
            raise InternalFault(f"a model's name has {len(name)} bytes")
        call = self._channel.unary_unary(SERVICE + method)
        try:
            await call(MODEL_NAME + bytes([len(name)]) + name, timeout=limit_s, metadata=self._metadata)
        except aio.AioRpcError as error:
            raise _error_of(error) from None


def _error_of(error: aio.AioRpcError) -> RequestError:
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return UpstreamBroken(SILENCE)
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return NotReady(f"the model server's gRPC port does not answer: {error.details()}", retry_after_s=1.0)
    return UpstreamBroken(f"the model server failed: {error.details()}")
