"""JSON bodies of requests: read strictly, refused by the name of what is wrong."""

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WrapValidator, model_validator
from pydantic_core import PydanticCustomError
from starlette.requests import ClientDisconnect

from common.errors import BodyTooLarge, Cancelled, InvalidRequest, UnsupportedMedia

MAX_JSON_BYTES = 8 * 2**20
"""Longest JSON body: parsing holds up everyone else. A context of 128 Ki tokens is half a megabyte of English."""

MAX_NAME_CHARS = 80
"""A field's name in an error is cut to this: a client may send any."""
MAX_FIELDS = 64
"""More than any form has. Pydantic makes an error of each unknown field: a gigabyte for a body of ten megabytes."""


class Form(BaseModel):
    """Base of every request body: no unknown fields, no conversions (``"10"``, ``true`` for 1), finite numbers only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_count(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and len(fields) > MAX_FIELDS:
            raise PydanticCustomError("too_many_fields", "more than {most} fields", {"most": MAX_FIELDS})
        return fields


AnyForm = TypeVar("AnyForm", bound=Form)


async def read_json(request: Request, form: type[AnyForm]) -> AnyForm:
    """The body of `request` as a `form`.

    Raises UnsupportedMedia where it is not said to be plain JSON, BodyTooLarge, and InvalidRequest with the first field
    that is wrong.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMedia(f"content type {media_type[:MAX_NAME_CHARS] or 'not given'}: send application/json")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMedia(f"content encoding {encoding[:MAX_NAME_CHARS]}: send the JSON as it is")
    return parse_json(await _read_body(request), form)


def parse_json(body: bytes, form: type[AnyForm]) -> AnyForm:
    """`body` as a `form`; raises InvalidRequest with the first field that is wrong, never with its value."""
    try:
        return form.model_validate_json(body)
    except ValidationError as error:
        raise _explain(error) from None


def one_sentence(says: str) -> WrapValidator:
    """Annotates a union: what is none of its members is refused with `says`, not with a sentence for each of them."""

    def check(value: Any, inner: Callable[[Any], Any]) -> Any:
        try:
            return inner(value)
        except ValidationError:
            raise PydanticCustomError("union", "{says}", {"says": says}) from None

    return WrapValidator(check)


def unsupported(*neutral: Any) -> BeforeValidator:
    """Annotates None, a field that is known but not honoured: null passes, and so do values that ask for nothing."""

    def check(value: Any) -> None:
        if value is not None and not any(type(value) is type(item) and value == item for item in neutral):
            raise PydanticCustomError("unsupported", "not supported by this server; leave it out")

    return BeforeValidator(check)


async def _read_body(request: Request) -> bytes:
    """The body, which the request keeps; the app's own limit holds for one that does not say its length."""
    length = request.headers.get("content-length", "")
    _refuse_long(int(length) if length.isdecimal() else 0)
    try:
        body = await request.body()
    except ClientDisconnect:
        raise Cancelled("the client has left") from None
    _refuse_long(len(body))
    return body


def _refuse_long(body_bytes: int) -> None:
    if body_bytes > MAX_JSON_BYTES:
        raise BodyTooLarge(
            f"the body has more than the {MAX_JSON_BYTES} bytes of JSON that are read",
            numbers={"max_body_bytes": MAX_JSON_BYTES},
        )


def _explain(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    name = ".".join(str(part) for part in first["loc"])[:MAX_NAME_CHARS]
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    if first["type"] == "extra_forbidden":
        return InvalidRequest(f"{name}: unknown field", param=name)
    return InvalidRequest(f"{name}: {first['msg']}" if name else f"the body: {first['msg']}", param=name or None)
