"""A frontend that is killed leaves its work to the next one."""

import io
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import numpy as np
from PIL import Image

from tests.integration.running import Running, command_of, descendants

IMAGES = 6
EDGE = 1500
"""Six of these keep the engine busy for longer than a frontend takes to start."""


def frontend_pid(service: Running) -> int:
    (pid,) = (pid for pid in descendants(service.process.pid) if "frontend.serve" in command_of(pid))
    return pid


def picture() -> bytes:
    pixels = np.random.default_rng(1).integers(0, 256, (EDGE, EDGE, 3), dtype=np.uint8)
    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, "PNG", compress_level=1)
        return file.getvalue()


@contextmanager
def at_work(service: Running) -> Iterator[None]:
    """A text in mid-stream and images in work, whose clients see the connection break."""

    def read() -> None:
        body = {"model": "llama", "prompt": "Once upon a time", "max_tokens": 4000, "temperature": 0, "stream": True}
        with suppress(httpx.HTTPError), httpx.stream("POST", f"{service.url}/v1/completions", json=body) as answer:
            for _ in answer.iter_bytes():
                pass

    def segment(image: bytes) -> None:
        with suppress(httpx.HTTPError):
            httpx.post(f"{service.url}/v1/segment", content=image, headers={"content-type": "image/png"}, timeout=60)

    with ThreadPoolExecutor(IMAGES + 1) as clients:
        clients.submit(read)
        for _ in range(IMAGES):
            clients.submit(segment, picture())
        yield


def test_the_next_frontend_takes_over_what_a_killed_one_left_and_ends_it(service: Running) -> None:
    before = len(service.output)
    with at_work(service):
        service.wait_for(lambda: len(service.get("/v1/ledger")["leases"]) > IMAGES // 2, 30)
        os.kill(frontend_pid(service), signal.SIGKILL)
    service.wait_for(service.ready)
    assert "still works for an earlier frontend" in service.output[before:]
    service.wait_for(lambda: service.held_bytes() == 0, 30)
    told = service.get("/v1/ledger")
    assert told["leases"] == []
    assert {account["drift_bytes"] for account in told["accounts"]} <= {0, None}
    answer = httpx.post(f"{service.url}/v1/completions", json={"model": "llama", "prompt": "a", "max_tokens": 2})
    assert answer.status_code == 200, answer.text
