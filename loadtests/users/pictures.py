"""Pictures of any size out of the sample image: tiled, as JPEG."""

from functools import cache
from io import BytesIO
from math import ceil
from pathlib import Path

import numpy as np
from PIL import Image

SAMPLE = Path(__file__).resolve().parents[2] / "docs" / "nuclei.png"
QUALITY = 80


@cache
def encoded(megapixels: float) -> bytes:
    """A square picture of so many million pixels."""
    edge = max(32, round((megapixels * 1e6) ** 0.5))
    with Image.open(SAMPLE) as sample:
        tile = np.asarray(sample.convert("RGB"))
    repeats = (ceil(edge / tile.shape[0]), ceil(edge / tile.shape[1]), 1)
    stream = BytesIO()
    Image.fromarray(np.tile(tile, repeats)[:edge, :edge]).save(stream, "JPEG", quality=QUALITY)
    return stream.getvalue()
