"""The exception tree and its one table to HTTP and Triton codes.

::

    VramgateError
    ├── SettingsError           the operator wrote something we cannot use
    ├── DeviceLost              this process can compute nothing more
    └── RequestError            one request is answered with this
        ├── InvalidRequest      400  malformed, out of range, unknown field
        ├── Unauthenticated     401  no key, or a wrong one
        ├── Forbidden           403  not for clients
        ├── NotFound            404  no such route or object
        │   └── ModelNotFound   404  no such model
        ├── MethodNotAllowed    405  the route exists, the verb does not
        ├── NeverFits           413  priced above the account's capacity
        ├── BodyTooLarge        413  more bytes than the route accepts
        ├── UnsupportedMedia    415  wrong content type
        ├── NotNow              429  fits, but not in what is left at this moment
        ├── Cancelled           499  the client left, or asked to stop
        ├── InternalFault       500  ours
        ├── UpstreamBroken      502  Triton or an engine answered nonsense
        ├── NotReady            503  an engine is loading, closed or gone
        └── DeadlineExceeded    504  not finished in the time the caller gave

An error crosses Triton as text, ``[CODE] message``, optionally followed by a JSON object of the numbers that decided,
because the HTTP status Triton gives to a stream's first error is not to be trusted (server 24.10 to 26.07).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Kind:
    """One row of the table: how an error is spelt on every wire."""

    http_status: int
    type: str
    """The family, in the words of the OpenAI error form."""
    code: str
    """The machine-readable code in the JSON body."""
    triton_code: str
    """The attribute of ``pb_utils.TritonError`` that comes nearest."""
    prefix: str
    """The code in front of an error text that crosses Triton."""


class VramgateError(Exception):
    """Root of everything this project raises on purpose."""


class SettingsError(VramgateError):
    """A setting is unknown, malformed or impossible; the message names the key and what to do."""


class DeviceLost(VramgateError):
    """The device's context is broken for good (illegal access, failed assert, ECC): the process has to end."""


class RequestError(VramgateError):
    """One request failed; carries what the client is told.

    ``numbers`` are the quantities that decided (``price_bytes``, ``available_bytes``, ``capacity_bytes``, …).
    ``retry_after_s`` is the expected time until a repeat could succeed, in seconds, where that is known.
    """

    kind: ClassVar[Kind] = Kind(500, "server_error", "internal_error", "INTERNAL", "INTERNAL")

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        numbers: Mapping[str, int] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.numbers = dict(numbers or {})
        self.retry_after_s = retry_after_s

    def to_text(self) -> str:
        """The form that crosses Triton: ``[CODE] message {json}``; the JSON only where there is something to say."""
        details: dict[str, object] = dict(self.numbers)
        if self.param is not None:
            details["param"] = self.param
        if self.retry_after_s is not None:
            details["retry_after_s"] = self.retry_after_s
        tail = " " + json.dumps(details) if details else ""
        return f"[{self.kind.prefix}] {self.message}{tail}"

    def to_body(self) -> dict[str, object]:
        """The body of an HTTP error, in the OpenAI form with the numbers beside it."""
        error: dict[str, object] = {
            "message": self.message,
            "type": self.kind.type,
            "param": self.param,
            "code": self.kind.code,
        }
        return {"error": error | self.numbers}


class InvalidRequest(RequestError):
    """The request itself is wrong: a field is missing, malformed, out of range or unknown."""

    kind = Kind(400, "invalid_request_error", "invalid_value", "INVALID_ARG", "INVALID_ARG")


class Unauthenticated(RequestError):
    """No API key was given, or an unknown one."""

    kind = Kind(401, "authentication_error", "invalid_api_key", "INVALID_ARG", "UNAUTHENTICATED")


class Forbidden(RequestError):
    """The thing exists, but clients may not touch it (management routes, unpriced models, reserved inputs)."""

    kind = Kind(403, "permission_error", "forbidden", "UNSUPPORTED", "PERMISSION_DENIED")


class NotFound(RequestError):
    """No such route or object."""

    kind = Kind(404, "invalid_request_error", "not_found", "NOT_FOUND", "NOT_FOUND")


class ModelNotFound(NotFound):
    """No such model."""

    kind = Kind(404, "invalid_request_error", "model_not_found", "NOT_FOUND", "MODEL_NOT_FOUND")


class MethodNotAllowed(RequestError):
    """The route exists, the HTTP method does not."""

    kind = Kind(405, "invalid_request_error", "method_not_allowed", "UNSUPPORTED", "METHOD_NOT_ALLOWED")


class NeverFits(RequestError):
    """The price exceeds the whole capacity: waiting cannot help, a smaller request can."""

    kind = Kind(413, "invalid_request_error", "never_fits", "INVALID_ARG", "NEVER_FITS")


class BodyTooLarge(RequestError):
    """The body has more bytes than the route accepts."""

    kind = Kind(413, "invalid_request_error", "content_too_large", "INVALID_ARG", "CONTENT_TOO_LARGE")


class UnsupportedMedia(RequestError):
    """The content type or encoding is not one the route reads."""

    kind = Kind(415, "invalid_request_error", "unsupported_media_type", "INVALID_ARG", "UNSUPPORTED_MEDIA")


class NotNow(RequestError):
    """The request fits the capacity, but not what is left now; a later repeat can succeed."""

    kind = Kind(429, "rate_limit_error", "rate_limit_exceeded", "UNAVAILABLE", "RESOURCE_EXHAUSTED")


class Cancelled(RequestError):
    """The client left or asked to stop; seen in logs and metrics only."""

    kind = Kind(499, "cancelled", "client_closed_request", "CANCELLED", "CANCELLED")


class InternalFault(RequestError):
    """A fault of ours; the message says what, never what the request contained."""


class UpstreamBroken(RequestError):
    """Triton or an engine is unreachable, died midway, or answered something that is no answer."""

    kind = Kind(502, "server_error", "upstream_error", "INTERNAL", "UPSTREAM")


class NotReady(RequestError):
    """An engine is loading, closed by its breaker, or gone."""

    kind = Kind(503, "service_unavailable_error", "server_is_overloaded", "UNAVAILABLE", "UNAVAILABLE")


class DeadlineExceeded(RequestError):
    """The work was stopped because the time the caller gave is used up."""

    kind = Kind(504, "timeout_error", "timeout", "UNAVAILABLE", "DEADLINE_EXCEEDED")


REQUEST_ERRORS: tuple[type[RequestError], ...] = (
    InvalidRequest,
    Unauthenticated,
    Forbidden,
    NotFound,
    ModelNotFound,
    MethodNotAllowed,
    NeverFits,
    BodyTooLarge,
    UnsupportedMedia,
    NotNow,
    Cancelled,
    InternalFault,
    UpstreamBroken,
    NotReady,
    DeadlineExceeded,
)
"""Everything a request can be answered with, in the order of the HTTP status."""

_BY_PREFIX = {cls.kind.prefix: cls for cls in REQUEST_ERRORS}
_BY_STATUS = {cls.kind.http_status: cls for cls in reversed(REQUEST_ERRORS)}
_TEXT = re.compile(r"\[(?P<prefix>[A-Z_]+)\] (?P<message>.*?)(?: (?P<details>\{[^{}]*\}))?\s*\Z", re.DOTALL)


def from_text(text: str) -> RequestError:
    """The error that :meth:`RequestError.to_text` wrote, or :class:`UpstreamBroken` around a text that is not ours."""
    match = _TEXT.search(text)
    if match is None or match["prefix"] not in _BY_PREFIX:
        return UpstreamBroken(f"the model server failed: {text.strip() or 'no reason given'}")
    details = _parse_details(match["details"])
    param = details.pop("param", None)
    retry_after_s = details.pop("retry_after_s", None)
    return _BY_PREFIX[match["prefix"]](
        match["message"],
        param=param if isinstance(param, str) else None,
        numbers={key: value for key, value in details.items() if isinstance(value, int)},
        retry_after_s=float(retry_after_s) if isinstance(retry_after_s, int | float) else None,
    )


def from_http_status(status: int, message: str) -> RequestError:
    """The error whose status this is; for statuses set by the web framework itself."""
    return _BY_STATUS.get(status, InvalidRequest if 400 <= status < 500 else InternalFault)(message)


def _parse_details(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    try:
        parsed = json.loads(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
