"""What an image says of itself is read without decoding it; hostile files are refused, never believed."""

import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from common.errors import InvalidRequest, NeverFits
from common.image_header import MAX_FRAMES, read

MEGAPIXEL = 1_000_000


def encode(mode: str = "RGB", size: tuple[int, int] = (40, 30), file_format: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, file_format, **options)
    return stream.getvalue()


def png(width: int, height: int, pixels: bytes = b"") -> bytes:
    """A PNG by hand, so that its header can lie."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def orientation(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[274] = value
    return exif


@pytest.mark.parametrize(
    ("mode", "file_format", "bit_depth"),
    [
        ("RGB", "PNG", 8),
        ("RGBA", "PNG", 8),
        ("L", "PNG", 8),
        ("LA", "PNG", 8),
        ("P", "PNG", 8),
        ("1", "PNG", 1),
        ("I;16", "PNG", 16),
        ("RGB", "JPEG", 8),
        ("L", "JPEG", 8),
        ("CMYK", "JPEG", 8),
        ("RGB", "TIFF", 8),
        ("I;16", "TIFF", 16),
        ("CMYK", "TIFF", 8),
        ("F", "TIFF", 32),
    ],
)
def test_every_mode_is_told_as_it_is(mode: str, file_format: str, bit_depth: int) -> None:
    header = read(encode(mode, file_format=file_format), MEGAPIXEL)
    assert (header.format, header.width, header.height) == (file_format, 40, 30)
    assert (header.mode, header.bit_depth, header.frames) == (mode, bit_depth, 1)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize(("value", "size"), [(1, (40, 30)), (3, (40, 30)), (6, (30, 40)), (8, (30, 40))])
def test_size_is_the_one_after_exif_rotation(file_format: str, value: int, size: tuple[int, int]) -> None:
    header = read(encode(file_format=file_format, exif=orientation(value)), MEGAPIXEL)
    assert (header.width, header.height) == size


def test_exif_with_a_nonsense_orientation_changes_nothing() -> None:
    header = read(encode(file_format="JPEG", exif=orientation(77)), MEGAPIXEL)
    assert (header.width, header.height) == (40, 30)


@pytest.mark.parametrize("file_format", ["TIFF", "PNG"])
def test_pages_are_counted_and_the_first_one_measured(file_format: str) -> None:
    pages = [Image.new("L", (60, 50)) for _ in range(2)]
    data = encode("L", file_format=file_format, save_all=True, append_images=pages)
    header = read(data, MEGAPIXEL)
    assert header.frames == 3
    if file_format == "TIFF":
        assert (header.width, header.height) == (40, 30)


def test_a_tiff_of_very_many_pages_is_not_walked_to_its_end() -> None:
    pages = [Image.new("1", (1, 1)) for _ in range(MAX_FRAMES + 50)]
    data = encode("1", (1, 1), "TIFF", save_all=True, append_images=pages)
    assert read(data, MEGAPIXEL).frames == MAX_FRAMES


def test_a_decompression_bomb_is_refused_with_both_numbers_before_decoding() -> None:
    with pytest.raises(NeverFits, match="200000 x 200000") as refusal:
        read(png(200_000, 200_000), max_pixels=10 * MEGAPIXEL)
    assert refusal.value.numbers == {"pixels": 40_000_000_000, "max_pixels": 10 * MEGAPIXEL}


def test_the_limit_itself_is_accepted() -> None:
    assert read(encode(size=(100, 100)), max_pixels=10_000).pixels == 10_000
    with pytest.raises(NeverFits):
        read(encode(size=(100, 100)), max_pixels=9_999)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"\x89PNG\r\n\x1a\n",
        encode()[:20],
        encode(file_format="JPEG")[:10],
        encode(file_format="TIFF")[:12],
        png(0, 0),
        png(0, 10),
        b"GIF89a" + b"\0" * 40,
        b"II*\0" + b"\xff" * 60,
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    ],
    ids=["empty", "text", "magic", "cut-png", "cut-jpeg", "cut-tiff", "0x0", "0x10", "gif", "junk-tiff", "svg"],
)
def test_what_is_no_image_of_ours_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        read(data, MEGAPIXEL)
    assert refusal.value.param == "image"


def test_a_truncated_body_still_has_a_header() -> None:
    """The size is known and can be priced; decoding is what fails."""
    assert read(encode(size=(40, 30))[:-20], MEGAPIXEL).pixels == 1200
