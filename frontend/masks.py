"""What a class mask becomes for a client: PNG, run lengths, areas, an overlay on the picture. All exact, all blocking.

A mask is uint8 [H, W] whose values are class indices, 0 the background.
"""

import colorsys
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from common.errors import InvalidRequest

Mask = NDArray[np.uint8]
Picture = NDArray[np.uint8]
"""[H, W, 3], RGB."""

MAX_RUNS = 2**22
"""Most run lengths of one class in an answer."""
_BAND_ROWS = 64
"""Rows that are painted at once: bounds what painting takes beside the picture."""
_TINT = 0.4
"""Share of the class colour in a tinted pixel."""


def palette() -> NDArray[np.uint8]:
    """Colour of each class index, [256, 3] RGB: black, then hues a golden section apart so that neighbours differ."""
    hues = [colorsys.hsv_to_rgb((0.02 + index * 0.618034) % 1.0, 0.85, 1.0) for index in range(255)]
    return np.asarray(np.rint(255 * np.array([(0.0, 0.0, 0.0), *hues])), np.uint8)


def to_png(mask: Mask, classes: int) -> bytes:
    """The mask as an 8-bit PNG: grey 0 and 255 for one class, else class indices with a palette."""
    if classes == 1:
        return _encode(Image.fromarray(np.where(mask, np.uint8(255), np.uint8(0))))
    image = Image.fromarray(mask)
    image.putpalette(palette().tobytes())
    return _encode(image, bits=8)


def to_rle(members: NDArray[np.bool_]) -> dict[str, Any]:
    """Run lengths of a boolean [H, W] in COCO's uncompressed form.

    ``counts`` alternates runs outside and inside, starting outside, down each column and then from column to column;
    ``size`` is [height, width]. Raises InvalidRequest for more than MAX_RUNS.
    """
    flat = members.ravel(order="F")
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    if len(edges) > MAX_RUNS:
        raise InvalidRequest(
            f"the mask has {len(edges)} runs of pixels, at most {MAX_RUNS} are told: ask for format=png", param="format"
        )
    counts = np.diff(edges, prepend=0, append=flat.size).tolist()
    return {"size": list(members.shape), "counts": [0, *counts] if flat[0] else counts}


def areas(mask: Mask) -> NDArray[np.int64]:
    """Pixels of each class index, int64 [256]."""
    return np.bincount(mask.ravel(), minlength=256)


def to_overlay(picture: Picture, mask: Mask) -> bytes:
    """A PNG of the picture with every class tinted in its colour and outlined; paints into `picture`.

    The outline is the pixels of a class that touch, by an edge, a pixel of another.
    """
    colours = palette()
    for top in range(0, len(mask), _BAND_ROWS):
        band = slice(top, top + _BAND_ROWS)
        pixels, labels = picture[band], mask[band]
        colour = colours[labels]
        tinted = pixels.astype(np.float32) * (1 - _TINT) + colour.astype(np.float32) * _TINT
        np.copyto(pixels, tinted.astype(np.uint8), where=(labels > 0)[..., None])
        np.copyto(pixels, colour, where=_outline(mask, top, top + len(labels))[..., None])
    return _encode(Image.fromarray(picture))


def _outline(mask: Mask, top: int, bottom: int) -> NDArray[np.bool_]:
    """Which pixels of rows `top` to `bottom` are on a class's border; the picture's own edge is none."""
    above = max(top - 1, 0)
    near = mask[above : bottom + 1]
    border = np.zeros(near.shape, np.bool_)
    across, down = near[:, 1:] != near[:, :-1], near[1:] != near[:-1]
    border[:, 1:] |= across
    border[:, :-1] |= across
    border[1:] |= down
    border[:-1] |= down
    return (border & (near > 0))[top - above :][: bottom - top]


def _encode(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1, **options)
    return buffer.getvalue()
