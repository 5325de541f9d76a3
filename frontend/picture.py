"""The picture that an uploaded file shows, as pixels to paint on."""

import numpy as np
from PIL import Image

from common.image_header import opened, upright
from frontend.masks import Picture

_BAND_PIXELS = 2**20
"""Pixels that are converted at once: bounds what is taken beside the decoder's copy and the result."""


def decode(encoded: bytes) -> Picture:
    """The first page of a PNG, JPEG or TIFF as RGB, upright by its EXIF, 16 bits cut to the upper 8; blocking.

    Reads what the engine reads, so it is used on what the engine has read; the pixels may be painted on.
    """
    with opened(encoded) as image:
        turned = upright(image)
        picture = np.empty((turned.height, turned.width, 3), np.uint8)
        step = max(1, _BAND_PIXELS // turned.width)
        for top in range(0, turned.height, step):
            bottom = min(top + step, turned.height)
            picture[top:bottom] = _to_rgb(turned.crop((0, top, turned.width, bottom)))
        return picture


def _to_rgb(band: Image.Image) -> Picture:
    """[h, w, 3], or [h, w, 1] where the three channels are the same."""
    if band.mode.startswith("I;16"):
        return (np.asarray(band) >> 8).astype(np.uint8)[:, :, None]
    if band.mode == "P" and "transparency" in band.info:
        band = band.convert("RGBA")
    return np.asarray(band if band.mode == "RGB" else band.convert("RGB"))
