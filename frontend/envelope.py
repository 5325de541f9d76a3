"""What is around every answer: its id, its end in log and metrics, and an answer where the app has none."""

import asyncio
import logging
import re
import time
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common.errors import InternalFault, NotReady, RequestError
from frontend import faults, record
from frontend.limits import UNCOUNTED
from frontend.record import Record
from frontend.refusals import respond

LOG = logging.getLogger(__name__)

REQUEST_ID = b"x-request-id"
SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,64}")


class Envelope:
    """The outermost middleware.

    Nothing that the app raises gets past it: the web server would log its message, which may quote a prompt, and
    answer in plain text. An answer that has begun is left incomplete, and the server closes the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        note = record.begin(_request_id(scope))
        started = False

        async def stamped(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = [item for item in message.get("headers", ()) if item[0].lower() != REQUEST_ID]
                message = {**message, "headers": [*headers, (REQUEST_ID, note.request_id.encode())]}
            await send(message)

        fault: RequestError | None = None
        try:
            await self._app(scope, receive, stamped)
        except asyncio.CancelledError:
            fault = NotReady("the server is shutting down", retry_after_s=1.0)
        except Exception as error:
            LOG.error("request %s failed: %s", note.request_id, faults.describe(error))
            fault = InternalFault("the server failed to answer; its log has more under this request's id")
        if fault is not None:
            answer = respond(fault, scope["path"])
            if not started:
                await answer(scope, receive, stamped)
        _close(scope, note, time.perf_counter() - began_s)


def _request_id(scope: Scope) -> str:
    """The caller's own id where it is a plain one, else a new one."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID and SANE_ID.fullmatch(value):
            return str(value.decode("ascii"))
    return uuid4().hex


def _close(scope: Scope, note: Record, seconds: float) -> None:
    note.route = getattr(scope.get("route"), "path", note.route)
    level = logging.DEBUG if scope["path"] in UNCOUNTED else logging.INFO
    LOG.log(
        level,
        "request %s %s %s tenant=%s model=%s outcome=%s price_bytes=%d seconds=%.3f",
        note.request_id,
        scope["method"],
        note.route,
        note.tenant.name,
        note.model,
        note.outcome,
        note.price_bytes,
        seconds,
    )
    services = getattr(scope["app"].state, "services", None)
    if services is not None and level == logging.INFO:
        services.metrics.request_finished(note.model, note.route, note.outcome, seconds, note.tenant.name)
