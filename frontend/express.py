"""The shortest way in for requests that come in great numbers: past the framework, straight to the endpoint."""

import re
from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from common.errors import Cancelled, RequestError
from frontend import record
from frontend.refusals import respond

Endpoint = Callable[[Request], Awaitable[Response]]


class Express:
    """Serves POSTs to `paths` itself, with the answers that the framework's routes would give; hands on the rest."""

    def __init__(self, app: ASGIApp, paths: Sequence[str], endpoint: Endpoint) -> None:
        self._app = app
        self._endpoint = endpoint
        self._routes: list[tuple[re.Pattern[str], str]] = [(compile_path(path)[0], path) for path in paths]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http" and scope["method"] == "POST":
            for pattern, path in self._routes:
                if match := pattern.match(scope["path"]):
                    scope["path_params"] = match.groupdict()
                    record.current().route = path
                    await (await self._answer(Request(scope, receive)))(scope, receive, send)
                    return
        await self._app(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._endpoint(request)
        except RequestError as error:
            return respond(error, request.url.path)
        except ClientDisconnect:
            return respond(Cancelled("the client has left"), request.url.path)
