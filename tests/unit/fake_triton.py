"""A small HTTP server in Triton's place, on a loopback port, with engines that do what a test tells them."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from frontend.triton import Triton

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(*routes: tuple[str, str, Handler]) -> AsyncIterator[str]:
    """Serves `routes` (method, path, handler); the base address."""
    app = web.Application(client_max_size=2**30)
    for method, path, handler in routes:
        app.router.add_route(method, path, handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def events(request: web.Request, *parts: bytes, pause_s: float = 0.0) -> web.StreamResponse:
    """Answers with an event stream written in these parts."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for part in parts:
        await response.write(part)
        await asyncio.sleep(pause_s)
    await response.write_eof()
    return response


def event(**fields: object) -> bytes:
    """One event as Triton writes it."""
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


@asynccontextmanager
async def client(*routes: tuple[str, str, Handler], control_s: float = 1.0) -> AsyncIterator[Triton]:
    async with serving(*routes) as url:
        triton = Triton(url, admin_key="secret", control_s=control_s)
        await triton.start()
        try:
            yield triton
        finally:
            await triton.close()


def answering(body: object, status: int = 200) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    return handler


def streaming(*parts: bytes) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await events(request, *parts)

    return handler
