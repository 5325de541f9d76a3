"""An image that a client sends, with what it wants to know of it: a multipart form, or the file itself as the body."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from fastapi import Request
from starlette.datastructures import UploadFile

from common.errors import InvalidRequest, UnsupportedMedia

MAX_FIELD_BYTES = 1024
DEFAULT_TOLERANCE = 1.0
MAX_NAME_CHARS = 80


class Form(StrEnum):
    """What the answer is."""

    PNG = "png"
    """The mask as a picture."""
    JSON = "json"
    """Run lengths, areas, components, statement."""
    POLYGONS = "polygons"
    """The same with outlines in place of run lengths."""
    OVERLAY = "overlay"
    """The image with the mask on it."""


@dataclass(frozen=True)
class Upload:
    """An encoded image and the wishes that came with it."""

    image: bytes
    form: Form
    threshold: float | None
    tolerance: float = DEFAULT_TOLERANCE
    """Pixels by which a polygon may miss the corners of the exact outline."""

    @classmethod
    async def read(cls, request: Request) -> Self:
        """The upload in `request`; raises InvalidRequest, UnsupportedMedia."""
        if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise UnsupportedMedia("images are compressed already: send the body without a content encoding")
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        wishes = _texts(request.query_params.multi_items())
        if media_type == "multipart/form-data":
            image, fields = await _read_form(request)
            wishes = _texts([*wishes.items(), *fields])
        elif media_type.startswith("image/") or media_type == "application/dicom":
            image = await request.body()
        else:
            raise UnsupportedMedia(
                f"content type {media_type[:MAX_NAME_CHARS] or 'not given'}: send multipart/form-data with the field "
                "'image', or the file itself with its type (image/png, image/jpeg, image/tiff)"
            )
        form = _read_form_name(wishes["format"]) if "format" in wishes else accepted(request.headers.get("accept"))
        threshold = _read_threshold(wishes["threshold"]) if "threshold" in wishes else None
        return cls(image, form, threshold, _read_tolerance(wishes.get("tolerance"), form))


def accepted(header: str | None) -> Form:
    """The form that an ``Accept`` header likes best; a PNG where it says nothing of use."""
    weights = {Form.PNG: 0.0, Form.JSON: 0.0}
    for item in (header or "").split(","):
        media_type, *parameters = (part.strip().lower() for part in item.split(";"))
        weight = _quality(parameters)
        for form, own in ((Form.PNG, "image/png"), (Form.JSON, "application/json")):
            if media_type == own:
                weights[form] = max(weights[form], weight)
    return Form.JSON if weights[Form.JSON] > weights[Form.PNG] else Form.PNG


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter[2:])
            except ValueError:
                return 0.0
    return 1.0


async def _read_form(request: Request) -> tuple[bytes, list[tuple[str, str]]]:
    """The file of field ``image``, and the other fields."""
    image: bytes | None = None
    fields: list[tuple[str, str]] = []
    async with request.form(max_files=1, max_fields=8, max_part_size=MAX_FIELD_BYTES) as form:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile) != (name == "image"):
                what = "must be a file" if name == "image" else "is no file"
                raise InvalidRequest(f"field {name[:MAX_NAME_CHARS]!r} {what}", param=name[:MAX_NAME_CHARS])
            if isinstance(value, UploadFile):
                image = await value.read()
            else:
                fields.append((name, value))
    if image is None:
        raise InvalidRequest("the form has no file in the field 'image'", param="image")
    return image, fields


def _texts(items: Iterable[tuple[str, str]]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, text in items:
        if name not in ("format", "threshold", "tolerance"):
            raise InvalidRequest(f"{name[:MAX_NAME_CHARS]}: unknown field", param=name[:MAX_NAME_CHARS])
        if name in texts:
            raise InvalidRequest(f"{name}: given twice", param=name)
        texts[name] = text
    return texts


def _read_form_name(text: str) -> Form:
    try:
        return Form(text)
    except ValueError:
        raise InvalidRequest(f"format must be one of {', '.join(Form)}", param="format") from None


def _read_threshold(text: str) -> float:
    try:
        threshold = float(text)
    except ValueError:
        threshold = math.nan
    if not 0 < threshold < 1:
        raise InvalidRequest("threshold must be a number above 0 and below 1", param="threshold")
    return threshold


def _read_tolerance(text: str | None, form: Form) -> float:
    if text is None:
        return DEFAULT_TOLERANCE
    if form is not Form.POLYGONS:
        raise InvalidRequest("tolerance: goes with format=polygons only", param="tolerance")
    try:
        tolerance = float(text)
    except ValueError:
        tolerance = math.nan
    if not 0 <= tolerance < math.inf:
        raise InvalidRequest("tolerance must be a number of pixels, 0 or more", param="tolerance")
    return tolerance
