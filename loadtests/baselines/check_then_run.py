"""After: the free memory of the card is read, a formula says what the request will take, and it runs if that is less.

Nothing is reserved: two requests that look at the same moment see the same bytes.
``python -m loadtests.baselines.check_then_run --port 8090``; the models are those of the settings.
"""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import torch
from fastapi import HTTPException

from common import settings
from common.readings import Reading, host_memory
from loadtests.baselines.models import Models
from loadtests.baselines.web import serve

MARGIN = 0.15
"""Of the card, never given away."""


class CheckThenRun:
    """Formula against free memory, at the moment of the request."""

    def __init__(self, models: Models) -> None:
        """The formula's constants are those of the model: its key-value cache, and one layer at prefill."""
        config = models.llm.config
        itemsize = models.llm.dtype.itemsize
        head_dim = config.hidden_size // config.num_attention_heads
        self._kv_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * itemsize
        self._prefill_bytes = itemsize * (4 * config.hidden_size + 3 * config.intermediate_size)
        unet = models.settings.unet
        tile_pixels = unet.tile_pixels_on(models.device.type) ** 2
        self._image_bytes = 150 * 2 * unet.width // 64 * tile_pixels * unet.tile_batch
        set_bytes = models.settings.card.total
        self._margin_bytes = MARGIN * (int(set_bytes) if set_bytes is not None else total_bytes())

    @asynccontextmanager
    async def text(self, prompt_tokens: int, max_tokens: int) -> AsyncIterator[None]:
        """Checked, then run."""
        self._check((prompt_tokens + max_tokens) * self._kv_bytes + prompt_tokens * self._prefill_bytes)
        yield

    @asynccontextmanager
    async def image(self) -> AsyncIterator[None]:
        """Checked, then run."""
        self._check(self._image_bytes)
        yield

    def _check(self, price_bytes: int) -> None:
        left_bytes = free_bytes() - self._margin_bytes
        if price_bytes > left_bytes:
            numbers = {"price_bytes": price_bytes, "available_bytes": int(left_bytes)}
            raise HTTPException(429, {"message": "not enough memory now, try again later", **numbers})


def free_bytes() -> int:
    """Free on the card, and cached by torch without use; without a card, of the host."""
    if not torch.cuda.is_available():
        return _host().free_bytes
    return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def total_bytes() -> int:
    """Of the card, or of the host."""
    return torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else _host().total_bytes


def _host() -> Reading:
    reading = host_memory()
    assert reading is not None
    return reading


def main() -> None:
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.baselines.check_then_run", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    asked = parser.parse_args()
    models = Models(settings.load())
    serve(models, CheckThenRun(models), asked.port)


if __name__ == "__main__":
    main()
