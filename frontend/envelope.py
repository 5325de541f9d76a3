"""What is around every answer: its id, its end in log and metrics, and an answer where the app has none."""

import asyncio
import logging
import re
import time
from uuid import uuid4

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from common import logs
from common.errors import InternalFault, NotReady, RequestError
from frontend import faults, record, tracing
from frontend.limits import UNCOUNTED
from frontend.metrics import ROUTES
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
        note = record.begin(_request_id(scope))
        if scope["path"] in UNCOUNTED:
            await self._serve(scope, receive, send, note, INVALID_SPAN)
            return
        with tracing.span(scope["method"], kind=SpanKind.SERVER, of=scope["headers"]) as span:
            await self._serve(scope, receive, send, note, span)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, note: Record, span: Span) -> None:
        began_s = time.perf_counter()
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
            LOG.error("a request failed: %s", faults.describe(error))
            fault = InternalFault("the server failed to answer; its log has more under this request's id")
        if fault is not None:
            answer = respond(fault, scope["path"])
            if not started:
                await answer(scope, receive, stamped)
        _close(scope, note, time.perf_counter() - began_s)
        span.update_name(f"{scope['method']} {note.route}")
        span.set_attributes({f"vramgate.{key}": value for key, value in _facts(note).items()})


def _request_id(scope: Scope) -> str:
    """The caller's own id where it is a plain one, else a new one."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID and SANE_ID.fullmatch(value):
            return str(value.decode("ascii"))
    return uuid4().hex


def _template(scope: Scope) -> str | None:
    """Path of the route that served it, as it was declared; the framework names it only for routes of its own kind."""
    if "route" in scope or "endpoint" not in scope:
        return getattr(scope.get("route"), "path", None)
    return str(scope["path"]) if scope["path"] in ROUTES else None


def _facts(note: Record) -> dict[str, str | int]:
    """What may be told of a request: nothing of what it asked or was answered."""
    lease = {"lease": note.lease} if note.lease else {}
    return {
        "request": note.request_id,
        "tenant": note.tenant.name,
        "model": note.model,
        **lease,
        "outcome": note.outcome,
        "price_bytes": note.price_bytes,
    }


def _close(scope: Scope, note: Record, seconds: float) -> None:
    note.route = _template(scope) or note.route
    level = logging.DEBUG if scope["path"] in UNCOUNTED else logging.INFO
    fields = _facts(note) | {"seconds": f"{seconds:.3f}"}
    LOG.log(level, "%s %s", scope["method"], note.route, extra={logs.FIELDS: fields})
    services = getattr(scope["app"].state, "services", None)
    if services is not None and level == logging.INFO:
        services.metrics.request_finished(note.model, note.route, note.outcome, seconds, note.tenant.name)
