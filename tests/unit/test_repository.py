"""Models are loaded over gRPC; the server here is a real one, its methods are the test's."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

from common.errors import NotReady, UpstreamBroken
from frontend.repository import SILENCE, Repository
from frontend.triton import Triton, is_refusal, is_silence
from tests.unit.web import run

Method = Callable[[bytes, Any], Any]


@asynccontextmanager
async def serving(load: Method) -> AsyncIterator[str]:
    """A gRPC server whose load and unload are `load`; its address."""
    server = aio.server()
    handler = grpc.unary_unary_rpc_method_handler(load)
    methods = {"RepositoryModelLoad": handler, "RepositoryModelUnload": handler}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@asynccontextmanager
async def client(address: str) -> AsyncIterator[Triton]:
    triton = Triton("http://127.0.0.1:1", "secret", grpc_address=address)
    await triton.start()
    try:
        yield triton
    finally:
        await triton.close()


def test_a_model_is_named_and_the_key_is_shown() -> None:
    seen: list[tuple[bytes, dict[str, str]]] = []

    async def load(request: bytes, context: Any) -> bytes:
        seen.append((request, dict(context.invocation_metadata())))
        return b""

    async def test() -> None:
        async with serving(load) as address, client(address) as triton:
            await triton.unload("llama")
            await triton.load("llama")
        assert [request for request, _ in seen] == [b"\x12\x05llama"] * 2
        assert seen[0][1]["triton-grpc-protocol-x-vramgate-admin"] == "secret"

    run(test)


def test_what_the_server_says_is_passed_on() -> None:
    async def load(request: bytes, context: Any) -> bytes:
        await context.abort(
            grpc.StatusCode.UNAVAILABLE if b"unet" in request else grpc.StatusCode.INTERNAL,
            "explicit model load / unload is not allowed if polling is enabled",
        )
        return b""

    async def test() -> None:
        async with serving(load) as address, client(address) as triton:
            with pytest.raises(UpstreamBroken, match="not allowed") as caught:
                await triton.load("llama")
            assert is_refusal(caught.value)
            with pytest.raises(NotReady, match="not allowed"):
                await triton.load("unet")

    run(test)


def test_a_load_that_does_not_end_is_silence() -> None:
    async def load(request: bytes, context: Any) -> bytes:
        await asyncio.sleep(3600)
        return b""

    async def test() -> None:
        async with serving(load) as address:
            repository = Repository(address, "key", None)
            await repository.start()
            with pytest.raises(UpstreamBroken, match=SILENCE) as caught:
                await repository.load("llama", 0.1)
            assert is_silence(caught.value)
            await repository.close()

    run(test)


def test_where_nobody_listens_it_is_not_ready() -> None:
    async def test() -> None:
        async with client("127.0.0.1:1") as triton:
            with pytest.raises(NotReady, match="gRPC"):
                await triton.load("llama")

    run(test)
