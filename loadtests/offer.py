"""Requests at a fixed rate, whatever becomes of them: a process of its own, so that it holds up nobody it measures.

``python -m loadtests.offer URL RATE SECONDS BODY`` prints ``[[seconds, status], ...]`` as JSON.
"""

import asyncio
import json
import sys
import time

import aiohttp


async def offer(url: str, rate_per_s: float, seconds: float, body: str) -> list[tuple[float, int]]:
    """Latency, from when the request was due, and status of every request; status 0 where none came."""
    data, headers = body.encode(), {"Content-Type": "application/json"}
    begun_s = time.perf_counter()
    told: list[tuple[float, int]] = []

    async def one(web: aiohttp.ClientSession, due_s: float) -> None:
        status = 0
        try:
            async with web.post(url, data=data, headers=headers) as answer:
                status = answer.status
                await answer.read()
        except aiohttp.ClientError:
            pass
        told.append((time.perf_counter() - due_s, status))

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as web, asyncio.TaskGroup() as group:
        for number in range(int(rate_per_s * seconds)):
            due_s = begun_s + number / rate_per_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            group.create_task(one(web, due_s))
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(offer(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))))
