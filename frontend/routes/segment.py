"""``POST /v1/segment``: an image in, its mask out as a picture, as JSON, or painted on the image."""

import asyncio
import json
import time
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from numpy.typing import NDArray

from common import image_header, medical_header
from common.errors import InvalidRequest
from common.image_header import ImageHeader
from common.wire import UnetLimits
from frontend import masks, outlines, picture
from frontend.disconnect import unless_disconnected
from frontend.offload import to_the_end
from frontend.runs import ImageJob, ImageResult
from frontend.services import Services, deadline_s, services
from frontend.upload import Form, Upload

router = APIRouter()

TOLD = (Form.JSON, Form.POLYGONS)
"""Answers in words, as JSON."""


@router.post("/v1/segment")
async def segment(request: Request, parts: Annotated[Services, Depends(services)]) -> Response:
    """Mask of an uploaded PNG, JPEG or TIFF, or of a DICOM or NIfTI file with one picture.

    The image is the file field ``image`` of a form, or the whole body. ``format`` (form or query) is ``png``, ``json``,
    ``polygons`` or ``overlay``; without it ``Accept`` decides between the first two. ``threshold`` replaces the model's
    own. ``tolerance`` is the number of pixels by which polygons may miss the exact outline; 0 makes them exact.
    """
    timeout_s = deadline_s(request, parts.settings)
    limits = parts.engines.unet_limits()
    upload = await Upload.read(request)
    if upload.threshold is not None and limits.classes > 1:
        raise InvalidRequest(
            f"threshold: the model has {limits.classes} classes, the likeliest wins", param="threshold"
        )
    header = await asyncio.to_thread(image_header.read, upload.image, limits.max_pixels)
    if upload.form is Form.OVERLAY and header.format in medical_header.FORMATS:
        raise InvalidRequest(f"format: {header.format} files are not painted on, ask for png", param="format")
    job = ImageJob(header.height, header.width, encoded=upload.image, threshold=upload.threshold)
    return await unless_disconnected(request, _answer(parts, upload, header, job, limits, timeout_s))


async def _answer(
    parts: Services, upload: Upload, header: ImageHeader, job: ImageJob, limits: UnetLimits, timeout_s: float
) -> Response:
    """Draws while the lease is held: its host bytes are those of the decoded image, which the engine no longer has."""
    async with parts.teller.segmenting(job, timeout_s) as result:
        started_s = time.monotonic()
        body = await to_the_end(_draw, upload, header, result, limits)
        encode_s = time.monotonic() - started_s
    media_type = "application/json" if upload.form in TOLD else "image/png"
    return Response(body, media_type=media_type, headers=_headers(header, result, encode_s))


def _draw(upload: Upload, header: ImageHeader, result: ImageResult, limits: UnetLimits) -> bytes:
    """The body of the answer; blocking."""
    if upload.form in TOLD:
        return json.dumps(_describe(upload, header, result, limits), separators=(",", ":")).encode()
    if upload.form is Form.OVERLAY:
        return masks.to_overlay(picture.decode(upload.image), result.mask)
    return masks.to_png(result.mask, limits.classes)


def _describe(upload: Upload, header: ImageHeader, result: ImageResult, limits: UnetLimits) -> dict[str, Any]:
    """The JSON answer; with several classes the first is the background, which every pixel of no other class is."""
    named = limits.class_names if limits.classes == 1 else limits.class_names[1:]
    areas = masks.areas(result.mask)
    threshold = limits.default_threshold if upload.threshold is None else upload.threshold
    return {
        "model": "unet",
        "width": header.width,
        "height": header.height,
        "threshold": threshold if limits.classes == 1 else None,
        "image": {
            "format": header.format,
            "mode": header.mode,
            "bit_depth": header.bit_depth,
            "page": 1,
            "pages": header.frames,
        },
        "connectivity": 4,
        "classes": [
            {"id": index, "name": name, "area_pixels": int(areas[index])} | _shape(upload, result.mask == index)
            for index, name in enumerate(named, 1)
        ],
        "vram": result.vram(),
        "statement": asdict(result.statement),
    }


def _shape(upload: Upload, members: NDArray[np.bool_]) -> dict[str, Any]:
    """Where the pixels of one class are, as the upload wishes, and how many components they make."""
    outline = outlines.trace(members)
    if upload.form is Form.JSON:
        return {"components": outline.components, "rle": masks.to_rle(members)}
    polygons = outline.simplified(upload.tolerance).geometry()
    return {"components": outline.components, "tolerance": upload.tolerance, "polygons": polygons}


def _headers(header: ImageHeader, result: ImageResult, encode_s: float) -> dict[str, str]:
    """What a picture cannot say: the request's bytes and seconds, and which page of the file was read."""
    statement = result.statement
    seconds = {"decode_s": statement.decode_image_s, "run_s": statement.run_s, "encode_s": encode_s}
    told = {"lease": statement.lease, "page": f"1/{header.frames}"} | result.vram()
    told |= {name: f"{value:.6f}" for name, value in seconds.items()}
    return {f"x-vramgate-{name.replace('_', '-')}": str(value) for name, value in told.items()}
