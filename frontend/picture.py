"""The picture that an uploaded file shows, as pixels to paint on."""

import numpy as np

from common.image_header import opened, upright
from frontend.masks import Picture


def decode(encoded: bytes) -> Picture:
    """The first page of a PNG, JPEG or TIFF as RGB, upright by its EXIF, 16 bits cut to the upper 8; blocking.

    Reads what the engine reads, so it is used on what the engine has read; the pixels may be painted on.
    """
    with opened(encoded) as image:
        turned = upright(image)
        if turned.mode.startswith("I;16"):
            levels = (np.asarray(turned) >> 8).astype(np.uint8)
            return np.repeat(levels[:, :, None], 3, axis=2)
        if turned.mode == "P" and "transparency" in turned.info:
            turned = turned.convert("RGBA")
        return np.array(turned.convert("RGB"))
