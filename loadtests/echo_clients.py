"""Clients that send one and the same inference again and again, the way a script with an HTTP library does.

``python -m loadtests.echo_clients URL CLIENTS SECONDS`` prints answers a second.
"""

import asyncio
import sys
import time

import aiohttp
import numpy as np
import tritonclient.http as client

EDGE = 16
PATH = "/v2/models/unet/infer"


def request() -> tuple[bytes, dict[str, str]]:
    """An inference as tritonclient writes it: an image of 16 x 16 pixels, its mask as binary data."""
    image = np.zeros((EDGE, EDGE, 3), np.uint8)
    tensor = client.InferInput("image", list(image.shape), "UINT8").set_data_from_numpy(image, binary_data=True)
    outputs = [client.InferRequestedOutput("mask", binary_data=True)]
    body, header_length = client.InferenceServerClient.generate_request_body([tensor], outputs=outputs)
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(header_length)}
    return bytes(body), headers


async def latencies_s(url: str, count: int) -> list[float]:
    """Of so many requests, one after the other on one connection."""
    body, headers = request()
    told = []
    async with aiohttp.ClientSession() as web:
        for _ in range(count):
            began_s = time.perf_counter()
            await _ask(web, url, body, headers)
            told.append(time.perf_counter() - began_s)
    return told


async def throughput_per_s(url: str, clients: int, seconds: float) -> float:
    """Answers a second to so many clients, each of which always has a request under way."""
    body, headers = request()
    done, begun_s = 0, time.perf_counter()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as web:

        async def one() -> None:
            nonlocal done
            while time.perf_counter() < begun_s + seconds:
                await _ask(web, url, body, headers)
                done += 1

        await asyncio.gather(*(one() for _ in range(clients)))
    return done / (time.perf_counter() - begun_s)


async def _ask(web: aiohttp.ClientSession, url: str, body: bytes, headers: dict[str, str]) -> None:
    async with web.post(url + PATH, data=body, headers=headers) as answer:
        if answer.status != 200:
            raise AssertionError(f"{answer.status}: {await answer.text()}")
        await answer.read()


if __name__ == "__main__":
    print(asyncio.run(throughput_per_s(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
