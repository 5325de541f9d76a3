"""Clients that send one and the same request again and again, and cost as little as they can."""

import asyncio
import time
from urllib.parse import urlsplit

import numpy as np
import tritonclient.http as client

EDGE = 16
HEADER_LENGTH = "Inference-Header-Content-Length"


def request(url: str) -> bytes:
    """An inference as tritonclient writes it: an image of 16 x 16 pixels, its mask as binary data."""
    image = np.zeros((EDGE, EDGE, 3), np.uint8)
    tensor = client.InferInput("image", list(image.shape), "UINT8").set_data_from_numpy(image, binary_data=True)
    outputs = [client.InferRequestedOutput("mask", binary_data=True)]
    body, header_length = client.InferenceServerClient.generate_request_body([tensor], outputs=outputs)
    head = (
        f"POST /v2/models/unet/infer HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: application/octet-stream\r\n{HEADER_LENGTH}: {header_length}\r\n\r\n"
    )
    return head.encode() + bytes(body)


async def latencies_s(url: str, count: int) -> list[float]:
    """Of so many requests, one after the other on one connection."""
    message = request(url)
    reader, writer = await _connect(url)
    told = []
    for _ in range(count):
        began_s = time.perf_counter()
        writer.write(message)
        await _read_answer(reader)
        told.append(time.perf_counter() - began_s)
    writer.close()
    return told


async def throughput_per_s(url: str, clients: int, seconds: float) -> float:
    """Answers a second to so many clients, each with a connection of its own and always a request under way."""
    message = request(url)
    done = 0
    end_s = time.perf_counter() + seconds

    async def one() -> None:
        nonlocal done
        reader, writer = await _connect(url)
        while time.perf_counter() < end_s:
            writer.write(message)
            await _read_answer(reader)
            done += 1
        writer.close()

    began_s = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    return done / (time.perf_counter() - began_s)


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def _read_answer(reader: asyncio.StreamReader) -> None:
    """One answer, which must be 200 and say its length."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise AssertionError(head.decode() + (await reader.read(1000)).decode(errors="replace"))
    start = head.index(b"\r\ncontent-length:") + 17
    await reader.readexactly(int(head[start : head.index(b"\r", start)]))
