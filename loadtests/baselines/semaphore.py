"""Before: FastAPI, a semaphore that counts requests, ``generate`` in threads.

``python -m loadtests.baselines.semaphore --port 8090``; the models are those of the settings.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common import settings
from loadtests.baselines.models import Models
from loadtests.baselines.web import serve


class Semaphore:
    """So many requests at once, of whatever size; the others wait."""

    def __init__(self, most: int) -> None:
        self._permits = asyncio.Semaphore(most)

    @asynccontextmanager
    async def text(self, prompt_tokens: int, max_tokens: int) -> AsyncIterator[None]:
        """A text counts as one."""
        async with self._permits:
            yield

    @asynccontextmanager
    async def image(self) -> AsyncIterator[None]:
        """So does a picture."""
        async with self._permits:
            yield


def main() -> None:
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.baselines.semaphore", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--most", type=int, default=20, help="requests at once")
    asked = parser.parse_args()
    serve(Models(settings.load()), Semaphore(asked.most), asked.port)


if __name__ == "__main__":
    main()
