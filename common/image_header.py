"""Size, bit depth and mode of an encoded image, read from its header; no pixel is decoded.

The first image of an animated or multi-page file counts; the number of images is told. Importing this module switches
off Pillow's own limit on pixels (a process-wide warning), since every caller here states a limit of its own.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from PIL import Image, UnidentifiedImageError

from common import medical_header
from common.errors import InvalidRequest, NeverFits, RequestError

FORMATS = ("PNG", "JPEG", "TIFF")
MAX_FRAMES = 100
"""Images of a file that are counted."""

Image.MAX_IMAGE_PIXELS = None

_ORIENTATION = 274
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> what puts the image upright."""
_TURNED = (5, 6, 7, 8)
"""EXIF orientations that exchange width and height."""


@dataclass(frozen=True)
class ImageHeader:
    """What an image file says of itself."""

    format: str
    """``PNG``, ``JPEG``, ``TIFF``, ``DICOM`` or ``NIfTI``."""
    width: int
    """Pixels, after the rotation that EXIF asks for."""
    height: int
    bit_depth: int
    """Bits of one channel as Pillow decodes it: 1, 8, 16 or 32."""
    mode: str
    """Pillow's name: ``RGB``, ``RGBA``, ``L``, ``I;16``, ``P``, ``CMYK``…; see ``medical_header`` for the others."""
    frames: int
    """Images in the file, counted up to MAX_FRAMES."""

    @property
    def pixels(self) -> int:
        """Width times height."""
        return self.width * self.height


def read(data: bytes, max_pixels: int) -> ImageHeader:
    """The header of an encoded PNG, JPEG or TIFF, or of a DICOM or NIfTI file with one picture.

    Raises InvalidRequest for what is none of them, has a broken header or no pixels, NeverFits with both numbers for
    more than `max_pixels` pixels, and UnsupportedMedia for a medical file where what reads it is not installed.
    """
    header = _read_medical(data) if medical_header.format_of(data) else _read_picture(data)
    if header.pixels < 1:
        raise InvalidRequest(f"the image has no pixels ({header.width} x {header.height})", param="image")
    if header.pixels > max_pixels:
        raise NeverFits(
            f"the image has {header.width} x {header.height} = {header.pixels} pixels, accepted are {max_pixels}",
            param="image",
            numbers={"pixels": header.pixels, "max_pixels": max_pixels},
        )
    return header


def _read_medical(data: bytes) -> ImageHeader:
    return ImageHeader(**asdict(medical_header.read(data)), frames=1)


def _read_picture(data: bytes) -> ImageHeader:
    with opened(data) as image:
        width, height = reversed(image.size) if orientation(image) in _TURNED else image.size
        return ImageHeader(
            format="JPEG" if image.format == "MPO" else image.format or "",
            width=width,
            height=height,
            bit_depth=_bit_depth(image.mode),
            mode=image.mode,
            frames=_count_frames(image),
        )


@contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """The image with its header parsed and nothing decoded; what goes wrong inside the block is the image's fault.

    Raises InvalidRequest. Pillow and libtiff raise almost anything on hostile input, so any exception but ours and a
    lack of memory is taken for a broken image.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            yield image
    except (RequestError, MemoryError):
        raise
    except UnidentifiedImageError:
        known = ", ".join((*FORMATS, *medical_header.FORMATS))
        raise InvalidRequest(f"this is no image in {known}", param="image") from None
    except Exception as error:
        raise InvalidRequest(f"the image is broken: {type(error).__name__}", param="image") from None


def orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8, that is left to be applied: Pillow itself turns a TIFF.

    Only what stands before the pixels counts, since a PNG's later chunks are not known without decoding.
    """
    if image.format == "TIFF" or not image.info.get("exif"):
        return 1
    exif = Image.Exif()
    exif.load(image.info["exif"])
    value = exif.get(_ORIENTATION)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF says; decodes it."""
    turn = orientation(image)
    image.load()
    return image.transpose(_TRANSPOSE[turn]) if turn in _TRANSPOSE else image


def _bit_depth(mode: str) -> int:
    if mode == "1":
        return 1
    if mode.startswith("I;16"):
        return 16
    return 32 if mode in ("I", "F") else 8


def _count_frames(image: Image.Image) -> int:
    """Walks the pages of a TIFF itself, since a file may claim millions; the image stands elsewhere afterwards."""
    if image.format != "TIFF":
        return int(getattr(image, "n_frames", 1))
    frames = 1
    while frames < MAX_FRAMES:
        try:
            image.seek(frames)
        except EOFError:
            break
        frames += 1
    return frames
