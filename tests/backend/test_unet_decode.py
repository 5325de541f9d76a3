"""Whatever a PNG, JPEG or TIFF holds becomes the RGB pixels that a viewer would show."""

import io
import struct
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from backend.unet.decode import decode
from common.errors import InvalidRequest, NeverFits
from common.image_header import read


def encode(image: Image.Image, file_format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def ramp() -> NDArray[np.uint8]:
    return np.arange(60 * 40, dtype=np.uint32).reshape(60, 40).astype(np.uint8)


def colours() -> NDArray[np.uint8]:
    return np.stack([ramp(), ramp()[::-1], 255 - ramp()], axis=2)


@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
def test_rgb_comes_out_as_it_is(file_format: str) -> None:
    np.testing.assert_array_equal(decode(encode(Image.fromarray(colours()), file_format)), colours())


@pytest.mark.parametrize("compression", ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"])
def test_tiff_compressions(compression: str) -> None:
    image = np.full((30, 20, 3), (200, 100, 50), np.uint8)
    decoded = decode(encode(Image.fromarray(image), "TIFF", compression=compression)).astype(int)
    assert np.abs(decoded - image).max() <= 3


@pytest.mark.parametrize(("file_format", "mode"), [("PNG", "L"), ("TIFF", "L"), ("PNG", "LA")])
def test_grey_is_repeated_in_three_channels(file_format: str, mode: str) -> None:
    decoded = decode(encode(Image.fromarray(ramp()).convert(mode), file_format))
    np.testing.assert_array_equal(decoded, np.repeat(ramp()[:, :, None], 3, axis=2))


@pytest.mark.parametrize("file_format", ["PNG", "TIFF"])
@pytest.mark.parametrize("factor", [256, 257])
def test_sixteen_bit_levels_are_scaled_not_clipped(file_format: str, factor: int) -> None:
    deep = Image.fromarray(ramp().astype(np.uint16) * factor)
    assert deep.mode == "I;16"
    np.testing.assert_array_equal(decode(encode(deep, file_format)), np.repeat(ramp()[:, :, None], 3, axis=2))


def test_big_endian_sixteen_bit_tiff() -> None:
    levels = ramp().astype(">u2") * 256
    header = b"MM\0*" + struct.pack(">I", 8 + levels.nbytes) + levels.astype(">u2").tobytes()
    fields = [(256, 40), (257, 60), (258, 16), (259, 1), (262, 1), (273, 8), (277, 1), (278, 60), (279, levels.nbytes)]
    body = b"".join(struct.pack(">HHII", tag, 4, 1, value) for tag, value in fields)
    data = header + struct.pack(">H", len(fields)) + body + b"\0\0\0\0"
    assert read(data, 10**6).bit_depth == 16
    np.testing.assert_array_equal(decode(data), np.repeat(ramp()[:, :, None], 3, axis=2))


def test_sixteen_bit_colour_keeps_the_high_byte() -> None:
    raw = b"".join(b"\0" + (row.astype(np.uint16) * 257).astype(">u2").tobytes() for row in colours())

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 40, 60, 16, 2, 0, 0, 0))
    data += chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    np.testing.assert_array_equal(decode(data), colours())


def test_alpha_is_dropped() -> None:
    translucent = np.concatenate([colours(), ramp()[:, :, None]], axis=2)
    np.testing.assert_array_equal(decode(encode(Image.fromarray(translucent), "PNG")), colours())


@pytest.mark.parametrize("transparency", [None, 3, bytes(range(256))])
def test_a_palette_is_looked_up_with_or_without_transparency(transparency: int | bytes | None) -> None:
    indexed = Image.frombytes("P", (40, 60), ramp().tobytes())
    palette = np.stack([np.arange(256), np.arange(256)[::-1], np.full(256, 7)], axis=1).astype(np.uint8)
    indexed.putpalette(palette.tobytes())
    options = {} if transparency is None else {"transparency": transparency}
    np.testing.assert_array_equal(decode(encode(indexed, "PNG", **options)), palette[ramp()])


def test_one_bit_is_black_and_white() -> None:
    bits = (ramp() > 100) * np.uint8(255)
    decoded = decode(encode(Image.fromarray(bits).convert("1"), "PNG"))
    np.testing.assert_array_equal(decoded, np.repeat(bits[:, :, None], 3, axis=2))


@pytest.mark.parametrize("file_format", ["JPEG", "TIFF"])
def test_cmyk_becomes_rgb(file_format: str) -> None:
    red = Image.new("RGB", (16, 16), (255, 0, 0)).convert("CMYK")
    decoded = decode(encode(red, file_format)).astype(int)
    assert np.abs(decoded - (255, 0, 0)).max() <= 6


@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "JPEG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_the_picture_upright_and_the_header_agrees(file_format: str, orientation: int) -> None:
    """A dark corner shows which way is up: EXIF names where row 0 and column 0 of the stored picture belong."""
    stored = np.full((48, 32, 3), 230, np.uint8)
    stored[:16, :16] = 10
    exif = Image.Exif()
    exif[274] = orientation
    data = encode(Image.fromarray(stored), file_format, exif=exif)
    decoded = decode(data)
    header = read(data, 10**6)
    assert decoded.shape[:2] == (header.height, header.width)
    dark = decoded.mean(axis=2) < 120
    top, left = dark[: len(dark) // 2].any(), dark[:, : dark.shape[1] // 2].any()
    expected = {1: (1, 1), 2: (1, 0), 3: (0, 0), 4: (0, 1), 5: (1, 1), 6: (1, 0), 7: (0, 0), 8: (0, 1)}
    assert (top, left) == expected[orientation]


def test_the_first_page_counts() -> None:
    pages = [Image.fromarray(255 - colours())]
    data = encode(Image.fromarray(colours()), "TIFF", save_all=True, append_images=pages)
    np.testing.assert_array_equal(decode(data), colours())


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "TIFF"])
def test_a_truncated_file_is_the_callers_fault(file_format: str) -> None:
    noisy = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encode(Image.fromarray(noisy), file_format)
    with pytest.raises(InvalidRequest, match="broken"):
        decode(data[: len(data) // 2])


def test_thirty_two_bits_are_refused_in_words() -> None:
    with pytest.raises(InvalidRequest, match="32 bits"):
        decode(encode(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"))


def test_flipped_bytes_never_escape_as_another_error() -> None:
    random = np.random.default_rng(1)
    for file_format in ("PNG", "JPEG", "TIFF"):
        data = encode(Image.fromarray(colours()), file_format)
        for _ in range(150):
            broken = bytearray(data)
            for position in random.integers(0, len(broken), 3):
                broken[position] = random.integers(0, 256)
            with suppress(InvalidRequest, NeverFits):
                header = read(bytes(broken), 10**5)
                assert decode(bytes(broken)).shape == (header.height, header.width, 3)
