import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from common.image_header import upright
from frontend import picture

WIDTH, HEIGHT = 40, 30


def encoded(mode: str, orientation: int = 1) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    image = Image.fromarray(noise[:, :, 0].astype(np.uint16) * 257) if mode == "I;16" else image.convert(mode)
    exif = Image.Exif()
    exif[274] = orientation
    stream = io.BytesIO()
    image.save(stream, "TIFF" if mode == "CMYK" else "PNG", exif=exif)
    return stream.getvalue()


def at_once(data: bytes) -> NDArray[Any]:
    with Image.open(io.BytesIO(data)) as image:
        turned = upright(image)
        if turned.mode.startswith("I;16"):
            return np.repeat((np.asarray(turned) >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
        return np.asarray(turned.convert("RGB"))


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "I;16", "CMYK"])
def test_bands_join_without_a_seam(mode: str, orientation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "_BAND_PIXELS", 7 * WIDTH)
    data = encoded(mode, orientation)
    painted = picture.decode(data)
    np.testing.assert_array_equal(painted, at_once(data))
    assert painted.flags.writeable


def test_no_second_copy_of_the_whole_picture_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    convert = Image.Image.convert

    def counted(image: Image.Image, *args: Any, **options: Any) -> Image.Image:
        sizes.append(image.width * image.height)
        return convert(image, *args, **options)

    data = encoded("RGBA")
    monkeypatch.setattr(picture, "_BAND_PIXELS", 2 * WIDTH)
    monkeypatch.setattr(Image.Image, "convert", counted)
    picture.decode(data)
    assert max(sizes) == 2 * WIDTH
