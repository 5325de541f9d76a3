"""Pictures, and the way to the segmentation route."""

import asyncio
import io
import struct
import zlib
from typing import Any

import httpx
from PIL import Image

from tests.unit.fake_parts import Parts


def ask(parts: Parts | None = None, **options: Any) -> httpx.Response:
    path = options.pop("path", "/v1/segment")
    return asyncio.run((parts or Parts()).ask("POST", path, **options))


def picture(width: int = 3, height: int = 2, mode: str = "RGB", form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (width, height)).save(buffer, form, **options)
    return buffer.getvalue()


def turned(width: int, height: int) -> bytes:
    """A JPEG that is stored lying and shown standing."""
    exif = Image.Exif()
    exif[274] = 6
    return picture(width, height, form="JPEG", exif=exif)


def opened(answer: httpx.Response) -> Image.Image:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "image/png"
    return Image.open(io.BytesIO(answer.content))


def turned_at_the_end(width: int, height: int) -> bytes:
    """A PNG whose EXIF stands behind the pixels, where it comes too late."""
    exif = Image.Exif()
    exif[274] = 6
    chunk = b"eXIf" + exif.tobytes().removeprefix(b"Exif\0\0")
    plain = picture(width, height)
    return plain[:-12] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + plain[-12:]


def upload(image: bytes, **fields: str) -> dict[str, Any]:
    return {"files": {"image": ("cells.png", image)}, "data": fields}
