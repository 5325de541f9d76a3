"""The app on a loopback port, served as in production."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from common.settings import Settings
from frontend.serve import Server, configure


@asynccontextmanager
async def serving_app(app: FastAPI, settings: Settings | None = None) -> AsyncIterator[str]:
    """Serves `app`; the base address."""
    server = Server(configure(settings or Settings(), app), app)
    listener = socket.create_server(("127.0.0.1", 0))
    task = asyncio.create_task(server.serve([listener]))
    try:
        await until(lambda: server.started or task.done())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Waits until `condition` holds; fails the test if it does not."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - the condition is anything at all
            await asyncio.sleep(0.005)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs an asynchronous test on a loop of its own."""
    asyncio.run(asyncio.wait_for(test(), 30))
