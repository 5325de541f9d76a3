"""Encoded images to RGB pixels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from common.errors import InvalidRequest
from common.image_header import opened, upright


def decode(data: bytes) -> NDArray[np.uint8]:
    """The first image of a PNG, JPEG or TIFF as RGB, uint8 [H, W, 3], turned upright as EXIF says.

    16-bit grey levels are scaled by 1/256; alpha is dropped; a palette, grey and CMYK become RGB. The caller has
    checked the size in the header. Raises InvalidRequest for a truncated or broken file and for 32-bit pixels.
    """
    with opened(data) as image:
        return _to_rgb(upright(image))


def _to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode in ("I", "F"):
        raise InvalidRequest("images of 32 bits a channel are not read: convert to 8 or 16 bits", param="image")
    if image.mode.startswith("I;16"):
        levels: NDArray[Any] = np.asarray(image) >> 8
        return np.repeat(levels.astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return np.array(image.convert("RGB"))
