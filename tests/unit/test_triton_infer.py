import json
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from common.errors import RequestError, UpstreamBroken
from tests.unit.fake_triton import Handler, answering, client
from tests.unit.web import run

INFER = "/v2/models/unet/infer"


def v2_reply(header: dict[str, Any], binary: bytes) -> web.Response:
    text = json.dumps(header).encode()
    return web.Response(
        body=text + binary,
        headers={"Inference-Header-Content-Length": str(len(text)), "Content-Type": "application/octet-stream"},
    )


@pytest.mark.parametrize("edge", [3, 700])
def test_infer_carries_arrays_both_ways(edge: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (edge, edge + 1, 3), dtype=np.uint8)

    async def echo(request: web.Request) -> web.Response:
        body = await request.read()
        split = int(request.headers["Inference-Header-Content-Length"])
        header = json.loads(body[:split])
        shapes = {item["name"]: item["shape"] for item in header["inputs"]}
        assert shapes == {"image": [edge, edge + 1, 3], "lease": [1]}
        assert [item["name"] for item in header["outputs"]] == ["mask", "statement"]
        pixels = body[split : split + image.nbytes]
        words = len(b"words").to_bytes(4, "little") + b"words"
        outputs: list[dict[str, Any]] = [
            {"name": "mask", "datatype": "UINT8", "shape": [edge, edge + 1, 3]},
            {"name": "statement", "datatype": "BYTES", "shape": [1]},
        ]
        for output, data in zip(outputs, (pixels, words), strict=True):
            output["parameters"] = {"binary_data_size": len(data)}
        return v2_reply({"model_name": "unet", "outputs": outputs}, pixels + words)

    async def test() -> None:
        async with client(("POST", INFER, echo)) as triton:
            lease = np.array([b'{"id": "a"}'], dtype=np.object_)
            answer = await triton.infer("unet", {"image": image, "lease": lease}, ["mask", "statement"])
        np.testing.assert_array_equal(answer["mask"], image)
        assert answer["mask"].dtype == np.uint8
        assert answer["statement"].tolist() == [b"words"]

    run(test)


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (answering({"error": "[INVALID_ARG] no image"}, 400), RequestError),
        (answering({"model_name": "unet", "outputs": []}), UpstreamBroken),
        (answering([1, 2]), UpstreamBroken),
        (answering({"outputs": [{"name": "mask", "datatype": "UINT8", "shape": [2], "data": [1]}]}), UpstreamBroken),
    ],
)
def test_infer_without_its_outputs_raises(handler: Handler, kind: type[RequestError]) -> None:
    async def test() -> None:
        async with client(("POST", INFER, handler)) as triton:
            with pytest.raises(kind):
                await triton.infer("unet", {"threshold": np.zeros(1, np.float32)}, ["mask"])

    run(test)
