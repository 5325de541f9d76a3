"""None"""

import io
import json
import struct
import zlib
from dataclasses import replace
from typing import Any

import nibabel
import numpy as np
import pytest
from PIL import Image

from common.errors import NeverFits, NotNow
from common.sections import Server
from common.settings import Settings
from frontend import masks
from frontend.runs import ImageJob
from frontend.upload import Form, accepted
from tests.unit.fake_parts import TILES, Parts, check_error, mask_of, vram_headers
from tests.unit.segment_kit import ask, opened, picture, turned, turned_at_the_end, upload


def test_form_upload_is_answered_with_the_mask_and_its_bytes() -> None:
    parts = Parts()
    answer = ask(parts, **upload(picture()))
    np.testing.assert_array_equal(np.asarray(opened(answer)), 255 * mask_of(2, 3))
    assert {name: answer.headers[name] for name in vram_headers()} == vram_headers()
    assert answer.headers["x-vramgate-page"] == "1/1"
    assert all(float(answer.headers[f"x-vramgate-{part}-s"]) >= 0 for part in ("decode", "run", "encode"))
    assert parts.teller.jobs == [ImageJob(2, 3, encoded=picture())]
    assert parts.teller.ended == ["settled"]


def test_file_as_the_body_is_the_same() -> None:
    parts = Parts()
    answer = ask(parts, content=picture(), headers={"Content-Type": "image/png"}, path="/v1/segment?threshold=0.25")
    assert opened(answer).size == (3, 2)
    assert parts.teller.jobs == [ImageJob(2, 3, encoded=picture(), threshold=0.25)]


def test_json_answer_tells_classes_by_run_lengths() -> None:
    answer = ask(**upload(picture(), format="json", threshold="0.7"))
    told = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert (told["width"], told["height"], told["threshold"]) == (3, 2, 0.7)
    assert told["connectivity"] == 4
    assert told["classes"] == [
        {
            "id": 1,
            "name": "nucleus",
            "area_pixels": 3,
            "components": 3,
            "rle": {"size": [2, 3], "counts": [0, 1, 2, 2, 1]},
        }
    ]
    assert told["image"] == {"format": "PNG", "mode": "RGB", "bit_depth": 8, "page": 1, "pages": 1}
    assert told["vram"] == {"quoted_bytes": 11, "held_bytes": 10, "peak_bytes": 7, "rung": "none"}
    assert told["statement"]["lease"] == "lease-1"


def test_polygons_tell_components_with_their_holes() -> None:
    parts = Parts()
    parts.teller.mask = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1], [0, 0, 1]], np.uint8)
    answer = ask(parts, **upload(picture(3, 4), format="polygons", tolerance="0"))
    (told,) = answer.json()["classes"]
    assert answer.headers["content-type"] == "application/json"
    outer = [[0, 0], [3, 0], [3, 4], [2, 4], [2, 3], [0, 3], [0, 0]]
    hole = [[2, 1], [1, 1], [1, 2], [2, 2], [2, 1]]
    assert told == {
        "id": 1,
        "name": "nucleus",
        "area_pixels": 9,
        "components": 1,
        "tolerance": 0,
        "polygons": {"type": "MultiPolygon", "coordinates": [[outer, hole]]},
    }


def test_polygons_are_simplified_unless_they_are_to_be_exact() -> None:
    parts = Parts()
    parts.teller.mask = np.tri(30, dtype=np.uint8)
    exact, rough = (
        ask(parts, **upload(picture(30, 30), format="polygons", **wish)).json()["classes"][0]["polygons"]
        for wish in ({"tolerance": "0"}, {})
    )
    assert len(exact["coordinates"][0][0]) > 50
    assert len(rough["coordinates"][0][0]) <= 5


def test_a_class_that_is_not_there_has_no_polygons() -> None:
    parts = Parts()
    parts.teller.mask = np.zeros((2, 3), np.uint8)
    (told,) = ask(parts, **upload(picture(), format="polygons")).json()["classes"]
    assert (told["components"], told["polygons"]["coordinates"]) == (0, [])


def test_several_classes_leave_out_the_background() -> None:
    parts = Parts()
    parts.engines.tiles = replace(TILES, classes=3, class_names=("none", "cell", "wall"))
    parts.teller.mask = np.array([[0, 1, 2], [2, 2, 0]], np.uint8)
    told = ask(parts, **upload(picture(), format="json")).json()
    assert [(item["id"], item["name"], item["area_pixels"]) for item in told["classes"]] == [
        (1, "cell", 1),
        (2, "wall", 3),
    ]
    assert told["threshold"] is None
    image = opened(ask(parts, **upload(picture())))
    assert image.mode == "P"
    np.testing.assert_array_equal(np.asarray(image), parts.teller.mask)
    check_error(ask(parts, **upload(picture(), threshold="0.5")), 400, "invalid_value")


def test_overlay_is_the_upright_image_with_the_mask_on_it() -> None:
    answer = ask(**upload(turned(40, 20), format="overlay"))
    painted = np.asarray(opened(answer))
    assert painted.shape == (40, 20, 3)
    board = mask_of(40, 20).astype(bool)
    assert (painted[board] == masks.palette()[1]).all(), "a chessboard is all outline"
    assert (painted[~board] < 10).all(), "the image is black"


def test_rotation_that_comes_after_the_pixels_is_ignored_by_header_and_overlay_alike() -> None:
    assert opened(ask(**upload(turned_at_the_end(40, 20), format="overlay"))).size == (40, 20)


@pytest.mark.parametrize(
    ("mode", "form"),
    [
        *((mode, "PNG") for mode in ("L", "LA", "RGBA", "P", "1", "I;16")),
        *((mode, "JPEG") for mode in ("L", "CMYK")),
        *((mode, "TIFF") for mode in ("CMYK", "I;16", "I;16B")),
    ],
)
def test_overlay_is_painted_on_every_kind_of_image(mode: str, form: str) -> None:
    answer = ask(**upload(picture(mode=mode, form=form), format="overlay"))
    assert np.asarray(opened(answer)).shape == (2, 3, 3)


def test_grey_levels_of_16_bits_survive_in_the_overlay() -> None:
    levels = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    buffer = io.BytesIO()
    Image.fromarray(levels).save(buffer, "PNG")
    parts = Parts()
    parts.teller.mask = np.zeros((16, 16), np.uint8)
    painted = np.asarray(opened(ask(parts, **upload(buffer.getvalue(), format="overlay"))))
    np.testing.assert_array_equal(painted[..., 0].ravel(), np.arange(256))


def test_first_of_several_pages_is_read_and_said_so() -> None:
    buffer = io.BytesIO()
    pages = [Image.new("L", (3, 2)), Image.new("L", (5, 5))]
    pages[0].save(buffer, "TIFF", save_all=True, append_images=pages[1:])
    answer = ask(**upload(buffer.getvalue()))
    assert opened(answer).size == (3, 2)
    assert answer.headers["x-vramgate-page"] == "1/2"
    assert ask(**upload(buffer.getvalue(), format="json")).json()["image"]["pages"] == 2


def test_a_medical_slice_is_told_by_its_format_and_not_painted_on() -> None:
    nifti = nibabel.Nifti1Image(np.zeros((3, 2), np.int16), np.eye(4)).to_bytes()  # type: ignore[no-untyped-call]
    told = ask(**upload(nifti, format="json")).json()
    assert told["image"] == {"format": "NIfTI", "mode": "int16", "bit_depth": 16, "page": 1, "pages": 1}
    assert (told["width"], told["height"]) == (3, 2)
    parts = Parts()
    assert "NIfTI" in check_error(ask(parts, **upload(nifti, format="overlay")), 400, "invalid_value")
    assert parts.teller.jobs == []


@pytest.mark.parametrize(
    ("header", "form"),
    [
        (None, Form.PNG),
        ("*/*", Form.PNG),
        ("image/png", Form.PNG),
        ("application/json", Form.JSON),
        ("application/json, image/png;q=0.5", Form.JSON),
        ("application/json;q=0.3, image/png;q=0.5", Form.PNG),
        ("text/html, application/xhtml+xml, */*;q=0.8", Form.PNG),
        ("application/json;q=x", Form.PNG),
        (",;,", Form.PNG),
    ],
)
def test_accept_header_decides_between_png_and_json(header: str | None, form: Form) -> None:
    assert accepted(header) is form


def bomb() -> bytes:
    """A small PNG that promises 10^10 pixels."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(9)))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


@pytest.mark.parametrize(
    "image", [b"", b"no image", picture()[:20], picture(form="GIF"), b"\xff\xd8\xff", b"II*\0\0\0\0\0"]
)
def test_what_is_no_image_is_refused(image: bytes) -> None:
    parts = Parts()
    check_error(ask(parts, **upload(image)), 400, "invalid_value")
    check_error(ask(parts, content=image, headers={"Content-Type": "image/png"}), 400, "invalid_value")
    assert parts.teller.jobs == []


def test_decompression_bomb_is_refused_with_its_pixels() -> None:
    answer = ask(**upload(bomb()))
    check_error(answer, 413, "never_fits")
    assert answer.json()["error"]["pixels"] == 10**10
    assert answer.json()["error"]["max_pixels"] == TILES.max_pixels


@pytest.mark.parametrize(
    ("options", "status", "code", "says"),
    [
        (upload(picture(), format="gif"), 400, "invalid_value", "png, json, polygons, overlay"),
        (upload(picture(), format="polygons", tolerance="-1"), 400, "invalid_value", "tolerance"),
        (upload(picture(), format="polygons", tolerance="inf"), 400, "invalid_value", "tolerance"),
        (upload(picture(), format="polygons", tolerance="nan"), 400, "invalid_value", "tolerance"),
        (upload(picture(), format="polygons", tolerance="much"), 400, "invalid_value", "tolerance"),
        (upload(picture(), tolerance="1"), 400, "invalid_value", "format=polygons only"),
        (upload(picture(), threshold="0"), 400, "invalid_value", "threshold"),
        (upload(picture(), threshold="1"), 400, "invalid_value", "threshold"),
        (upload(picture(), threshold="nan"), 400, "invalid_value", "threshold"),
        (upload(picture(), threshold="many"), 400, "invalid_value", "threshold"),
        (upload(picture(), colour="red"), 400, "invalid_value", "colour"),
        (upload(picture(), format="json") | {"path": "/v1/segment?format=png"}, 400, "invalid_value", "twice"),
        ({"files": {"image": ("a", b"x"), "other": ("b", b"y")}}, 400, "invalid_value", ""),
        ({"files": {"picture": ("a", picture())}}, 400, "invalid_value", "picture"),
        ({"files": {"format": (None, "json")}}, 400, "invalid_value", "image"),
        ({"files": {"image": (None, "text")}}, 400, "invalid_value", "must be a file"),
        ({"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 400, "invalid_value", ""),
        ({"content": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=b"}}, 400, "invalid_value", ""),
        ({"content": picture()}, 415, "unsupported_media_type", "multipart"),
        ({"json": {}}, 415, "unsupported_media_type", "multipart"),
        ({"content": b"", "headers": {"Content-Type": "image/png", "Content-Encoding": "gzip"}}, 415, None, "encoding"),
        (upload(picture()) | {"headers": {"X-Request-Timeout": "-1"}}, 400, "invalid_value", "timeout"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    options: dict[str, Any], status: int, code: str | None, says: str
) -> None:
    parts = Parts()
    assert says in check_error(ask(parts, **options), status, code or "unsupported_media_type")
    assert parts.teller.jobs == []
    assert ask(parts, **upload(picture())).status_code == 200, "the next request works"


def test_refusals_of_the_teller_come_with_their_numbers() -> None:
    parts = Parts()
    parts.teller.refusal = NeverFits("too wide", numbers={"price_bytes": 9, "capacity_bytes": 5})
    answer = ask(parts, **upload(picture()))
    assert check_error(answer, 413, "never_fits") == "too wide"
    assert answer.json()["error"]["capacity_bytes"] == 5
    parts.teller.refusal = NotNow("later", retry_after_s=2.5)
    assert ask(parts, **upload(picture())).headers["retry-after"] == "3"


def test_engine_that_is_not_ready_is_said_before_anything_is_read() -> None:
    parts = Parts()
    parts.engines.trouble = {"unet": "loading"}
    answer = ask(parts, content=b"not even an image")
    assert "loading" in check_error(answer, 503, "server_is_overloaded")


def test_body_over_the_limit_is_refused() -> None:
    parts = Parts(Settings(server=Server.model_validate({"max_body_bytes": 1000})))
    check_error(ask(parts, **upload(bytes(2000))), 413, "content_too_large")
    assert json.loads(ask(parts, **upload(picture(), format="json")).content)["height"] == 2
