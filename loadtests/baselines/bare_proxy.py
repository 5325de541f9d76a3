"""The least that can stand between a client and the model server: it passes on requests and answers, and knows nothing.

``python -m loadtests.baselines.bare_proxy UPSTREAM PORT``
"""

import sys
from typing import Any

import aiohttp
import uvicorn

HOP = frozenset({b"host", b"content-length", b"connection"})


class Proxy:
    """An ASGI application."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._web: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        if self._web is None:
            self._web = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"] if name not in HOP}
        url = self._upstream + scope["path"]
        async with self._web.request(scope["method"], url, data=body, headers=headers) as answer:
            told = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
            await send({"type": "http.response.start", "status": answer.status, "headers": told})
            await send({"type": "http.response.body", "body": await answer.read()})


if __name__ == "__main__":
    port = int(sys.argv[2])
    uvicorn.run(
        Proxy(sys.argv[1]),
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="error",
        access_log=False,
    )
