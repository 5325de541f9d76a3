"""Encoded images to RGB pixels, without more copies than are priced: Pillow's own and the result."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from backend.unet import medical
from common import medical_header
from common.errors import InvalidRequest
from common.image_header import opened, orientation

_BAND_PIXELS = 2**20
"""Pixels that are converted at once."""


def decode(data: bytes) -> NDArray[np.uint8]:
    """The first image of a PNG, JPEG or TIFF as RGB, uint8 [H, W, 3], turned upright as EXIF says.

    16-bit grey levels are scaled by 1/256; alpha is dropped; a palette, grey and CMYK become RGB. For DICOM and NIfTI
    see :mod:`backend.unet.medical`. The caller has checked the size in the header. Raises InvalidRequest for a
    truncated or broken file and for 32-bit pixels.
    """
    if medical_header.format_of(data):
        return medical.decode(data)
    return np.ascontiguousarray(_upright(*_stored(data)))


def _stored(data: bytes) -> tuple[NDArray[np.uint8], int]:
    """Pixels as they lie in the file, and their EXIF orientation; Pillow's copy is gone when this returns."""
    with opened(data) as image:
        turn = orientation(image)
        image.load()
        if image.mode in ("I", "F"):
            raise InvalidRequest("images of 32 bits a channel are not read: convert to 8 or 16 bits", param="image")
        pixels = np.empty((image.height, image.width, 3), np.uint8)
        step = max(1, _BAND_PIXELS // image.width)
        for top in range(0, image.height, step):
            bottom = min(top + step, image.height)
            pixels[top:bottom] = _to_rgb(image.crop((0, top, image.width, bottom)))
        return pixels, turn


def _to_rgb(band: Image.Image) -> NDArray[np.uint8]:
    """[h, w, 3], or [h, w, 1] where the three channels are the same."""
    if band.mode.startswith("I;16"):
        levels: NDArray[Any] = np.asarray(band)
        return (levels >> 8).astype(np.uint8)[:, :, None]
    if band.mode == "P" and "transparency" in band.info:
        band = band.convert("RGBA")
    return np.asarray(band if band.mode == "RGB" else band.convert("RGB"))


def _upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Undoes an EXIF orientation; a view. 5 to 8 exchange rows and columns."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels
