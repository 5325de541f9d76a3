"""Errors as HTTP answers: one form for whatever goes wrong, wherever."""

import math
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from common.errors import Cancelled, InvalidRequest, RequestError, Unauthenticated, from_http_status
from frontend import record, v2

V2 = "/v2"


def respond(error: RequestError, path: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The final answer of a request to `path` that failed; below ``/v2`` in the form that KServe's clients read."""
    record.current().outcome = error.kind.code
    in_v2 = path == V2 or path.startswith(V2 + "/")
    body = v2.error_body(error) if in_v2 else error.to_body()
    return JSONResponse(body, error.kind.http_status, headers_of(error) | dict(headers or {}))


def headers_of(error: RequestError) -> dict[str, str]:
    """``Retry-After`` where the time is known, and a word for clients that would repeat in vain."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if 400 <= error.kind.http_status < 500 and error.kind.http_status != 429:
        headers["x-should-retry"] = "false"
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def install(app: FastAPI) -> None:
    """Makes `app` answer every error in this form; what is not listed here is the envelope's."""
    app.add_exception_handler(RequestError, _refuse)
    app.add_exception_handler(HTTPException, _translate)
    app.add_exception_handler(RequestValidationError, _explain)
    app.add_exception_handler(ClientDisconnect, _part)


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestError)
    return respond(error, request.url.path)


async def _translate(request: Request, error: Exception) -> JSONResponse:
    """What the framework itself raises: no such route, wrong verb, a body it cannot read."""
    assert isinstance(error, HTTPException)
    words = {404: "no such route", 405: f"this route does not answer {request.method}"}
    refusal = from_http_status(error.status_code, words.get(error.status_code, str(error.detail)))
    return respond(refusal, request.url.path, error.headers)


async def _explain(request: Request, error: Exception) -> JSONResponse:
    """What the framework finds wrong with a parameter; the value itself is not repeated."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    source, *keys = first["loc"]
    param = ".".join(str(key) for key in keys) or None
    return respond(InvalidRequest(f"{param or source}: {first['msg']}", param=param), request.url.path)


async def _part(request: Request, error: Exception) -> JSONResponse:
    """The client left before its body had come; nobody reads this answer."""
    return respond(Cancelled("the client has left"), request.url.path)
