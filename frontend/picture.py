"""The picture that an uploaded file shows, as pixels to paint on."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from common import image_header
from frontend.masks import Picture


def decode(encoded: bytes) -> Picture:
    """The first page of a PNG, JPEG or TIFF as RGB, upright by its EXIF; blocking. A copy that may be painted on."""
    with image_header.opened(encoded) as image:
        upright = ImageOps.exif_transpose(image)
        if upright.mode in ("I", "F") or upright.mode.startswith("I;"):
            upright = Image.fromarray(_to_8_bit(np.asarray(upright)))
        return np.array(upright.convert("RGB"))


def _to_8_bit(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """16 bits to the upper 8."""
    return (np.clip(values.astype(np.int64), 0, 65535) >> 8).astype(np.uint8)
