"""``POST /v1/segment`` with real uploads against the whole service: real server, real weights."""

import gzip
import io
import json
import struct
import zlib
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import httpx
import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from tests.integration.running import Running

ENDED_S = 10.0


@pytest.fixture(autouse=True)
def idle_afterwards(service: Running) -> Iterator[None]:
    """Whatever a test did, its leases end."""
    yield
    service.wait_for(lambda: service.held_bytes() == 0, ENDED_S)


def cells(width: int = 96, height: int = 80) -> Image.Image:
    """Bright discs on black, as nuclei look under a fluorescence microscope."""
    image = Image.new("RGB", (width, height), (8, 8, 8))
    draw = ImageDraw.Draw(image)
    for x, y in ((20, 20), (60, 30), (35, 60), (80, 65)):
        draw.ellipse((x - 9, y - 9, x + 9, y + 9), fill=(150, 150, 150))
    return image


def encode(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def turned() -> bytes:
    """A JPEG of the cells that is stored on its side and shown upright."""
    exif = Image.Exif()
    exif[274] = 6
    return encode(cells().transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif, quality=95)


def post(service: Running, image: bytes, **fields: str) -> httpx.Response:
    return httpx.post(f"{service.url}/v1/segment", files={"image": image}, data=fields, timeout=60)


def picture(answer: httpx.Response) -> NDArray[np.uint8]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "image/png"
    assert int(answer.headers["x-vramgate-held-bytes"]) <= int(answer.headers["x-vramgate-quoted-bytes"])
    return np.asarray(Image.open(io.BytesIO(answer.content)))


def from_rle(rle: dict[str, Any]) -> NDArray[np.bool_]:
    values = np.arange(len(rle["counts"])) % 2 == 1
    return np.repeat(values, rle["counts"]).reshape(rle["size"], order="F")


def shoelace(closed: NDArray[np.int64]) -> float:
    x, y = closed.T
    return float(x[:-1] @ y[1:] - x[1:] @ y[:-1]) / 2


def test_discs_are_found_and_the_answers_agree(service: Running) -> None:
    image = cells()
    mask = picture(post(service, encode(image)))
    truth = np.asarray(image)[..., 0] > 100
    found = mask == 255
    assert set(np.unique(mask)) <= {0, 255}
    assert (found & truth).sum() / (found | truth).sum() > 0.5
    told = post(service, encode(image), format="json").json()
    (nucleus,) = told["classes"]
    np.testing.assert_array_equal(from_rle(nucleus["rle"]), found)
    assert nucleus["area_pixels"] == found.sum()
    assert told["statement"]["pixels"] == image.width * image.height
    assert told["vram"]["rung"] == "none"
    (outlined,) = post(service, encode(image), format="polygons", tolerance="0").json()["classes"]
    rings = [np.array(ring) for polygon in outlined["polygons"]["coordinates"] for ring in polygon]
    assert sum(shoelace(ring) for ring in rings) == found.sum()
    assert outlined["components"] == nucleus["components"] == len(outlined["polygons"]["coordinates"]) == 4
    overlay = picture(post(service, encode(image), format="overlay"))
    assert overlay.shape == (80, 96, 3)
    np.testing.assert_array_equal((overlay != np.asarray(image)).any(axis=-1), found)


def test_file_as_the_body_is_the_same_as_a_form(service: Running) -> None:
    data = encode(cells())
    headers = {"Content-Type": "image/png", "Accept": "application/json"}
    answer = httpx.post(f"{service.url}/v1/segment", content=data, headers=headers, timeout=60)
    mask = picture(post(service, data)) == 255
    np.testing.assert_array_equal(from_rle(answer.json()["classes"][0]["rle"]), mask)


def test_exif_rotation_is_applied(service: Running) -> None:
    told = post(service, turned(), format="json").json()
    assert (told["width"], told["height"]) == (96, 80)
    upright = picture(post(service, encode(cells()))) == 255
    mask = from_rle(told["classes"][0]["rle"])
    assert (mask & upright).sum() / (mask | upright).sum() > 0.9, "but for what JPEG changes"
    assert picture(post(service, turned(), format="overlay")).shape == (80, 96, 3)


def test_a_nifti_slice_is_the_picture_of_its_display_range(service: Running) -> None:
    grey = cells().convert("L")
    voxels = nibabel.Nifti1Image(np.asarray(grey).T.astype(np.int16), np.eye(4))  # type: ignore[no-untyped-call]
    voxels.header["cal_max"] = 255
    mask = picture(post(service, gzip.compress(voxels.to_bytes())))
    np.testing.assert_array_equal(mask, picture(post(service, encode(grey))))


def sixteen_bits() -> Image.Image:
    return Image.fromarray(np.asarray(cells().convert("L")).astype(np.uint16) << 8)


KINDS: dict[str, bytes] = {
    "1x1": encode(Image.new("RGB", (1, 1))),
    "31x33": encode(cells().crop((0, 0, 31, 33))),
    "1000x130": encode(Image.new("RGB", (1000, 130), (90, 60, 30)), "JPEG"),
    "RGBA": encode(cells().convert("RGBA")),
    "grey": encode(cells().convert("L")),
    "grey and alpha": encode(cells().convert("LA")),
    "palette": encode(cells().convert("P")),
    "black and white": encode(cells().convert("1")),
    "CMYK JPEG": encode(cells().convert("CMYK"), "JPEG"),
    "CMYK TIFF": encode(cells().convert("CMYK"), "TIFF"),
    "16 bits PNG": encode(sixteen_bits()),
    "16 bits TIFF": encode(sixteen_bits(), "TIFF"),
    "compressed TIFF": encode(cells(), "TIFF", compression="tiff_lzw"),
    "progressive JPEG": encode(cells(), "JPEG", progressive=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_image_has_a_mask_of_its_size(service: Running, kind: str) -> None:
    size = Image.open(io.BytesIO(KINDS[kind])).size
    mask = picture(post(service, KINDS[kind]))
    assert mask.shape == size[::-1]
    told = post(service, KINDS[kind], format="json").json()
    np.testing.assert_array_equal(from_rle(told["classes"][0]["rle"]), mask == 255)
    assert picture(post(service, KINDS[kind], format="overlay")).shape == (*size[::-1], 3)


def test_grey_levels_of_16_bits_are_those_of_8(service: Running) -> None:
    np.testing.assert_array_equal(
        picture(post(service, encode(sixteen_bits()))), picture(post(service, encode(cells().convert("L"))))
    )


def test_first_of_several_pages_is_segmented_and_said_so(service: Running) -> None:
    pages = encode(cells(), "TIFF", save_all=True, append_images=[Image.new("RGB", (5, 5))] * 2)
    answer = post(service, pages)
    np.testing.assert_array_equal(picture(answer), picture(post(service, encode(cells()))))
    assert answer.headers["x-vramgate-page"] == "1/3"
    assert post(service, pages, format="json").json()["image"]["pages"] == 3


def chunked(width: int, height: int) -> bytes:
    """A small PNG that promises this many pixels."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(9)))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


@pytest.mark.parametrize(
    ("image", "status", "code"),
    [
        (b"", 400, "invalid_value"),
        (b"this is no image", 400, "invalid_value"),
        (encode(cells(), "GIF"), 400, "invalid_value"),
        (encode(cells())[:30], 400, "invalid_value"),
        (encode(cells())[:200], 400, "invalid_value"),
        (encode(cells(), "JPEG")[:900], 400, "invalid_value"),
        (encode(cells(), "TIFF")[:900], 400, "invalid_value"),
        (encode(cells().convert("L").convert("F"), "TIFF"), 400, "invalid_value"),
        (chunked(0, 0), 400, "invalid_value"),
        (chunked(100_000, 100_000), 413, "never_fits"),
        (encode(Image.new("1", (150_000, 1))), 413, "never_fits"),
    ],
    ids=["empty", "text", "GIF", "cut header", "cut PNG", "cut JPEG", "cut TIFF", "float", "0x0", "bomb", "too wide"],
)
def test_what_cannot_be_segmented_is_refused_and_the_next_image_works(
    service: Running, image: bytes, status: int, code: str
) -> None:
    for form in ("png", "overlay"):
        answer = post(service, image, format=form)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert error["code"] == code
        assert (
            status == 400
            or {"pixels", "max_pixels"} <= error.keys()
            or {"price_bytes", "capacity_bytes"} <= error.keys()
        )
    assert picture(post(service, KINDS["1x1"])).shape == (1, 1)


def test_requests_that_are_not_understood_are_refused(service: Running) -> None:
    url = f"{service.url}/v1/segment"
    image = KINDS["1x1"]
    assert httpx.post(url, content=image).status_code == 415
    assert httpx.post(url, json={"image": "x"}).status_code == 415
    assert httpx.post(url, files={"picture": image}).status_code == 400
    assert post(service, image, format="gif").status_code == 400
    assert post(service, image, threshold="2").status_code == 400
    assert post(service, image, colour="red").status_code == 400
    assert httpx.get(url).status_code == 405


def test_body_over_the_limit_is_refused_before_it_is_sent(service: Running) -> None:
    connection = HTTPConnection("127.0.0.1", service.port, timeout=10)
    connection.putrequest("POST", "/v1/segment")
    connection.putheader("Content-Type", "image/png")
    connection.putheader("Content-Length", str(2**40))
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 413
    assert json.loads(answer.read())["error"]["code"] == "content_too_large"
    connection.close()
