"""``transformers serve`` with continuous batching, and a route for pictures beside its own.

``python -m loadtests.baselines.transformers_serve --port 8090``; the models are those of the settings. Its own command
line is used but for two things that it cannot do: random weights of a configuration, and the segmentation model.
"""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import torch
from fastapi import FastAPI

from common import model_folder, settings
from common.settings import Settings
from loadtests import peers
from loadtests.baselines.models import Models
from loadtests.baselines.web import image_router

MEMORY_SHARE = 0.8
"""Of the free memory for the cache; its default takes what the segmentation model needs."""


class Open:
    """No gate: the library has a queue of its own."""

    @asynccontextmanager
    async def text(self, prompt_tokens: int, max_tokens: int) -> AsyncIterator[None]:
        """Everybody."""
        yield

    @asynccontextmanager
    async def image(self) -> AsyncIterator[None]:
        """Everybody."""
        yield


def main() -> None:
    """Serves until it is stopped."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.baselines.transformers_serve", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    asked = parser.parse_args()
    told = settings.load()
    models = Models(told)
    assert models.unet is not None
    patch(models)
    from transformers.cli.serve import Serve

    Serve(
        force_model=str(model_folder.resolve(told)),
        continuous_batching=True,
        attn_implementation="sdpa",
        device="cuda" if torch.cuda.is_available() else "cpu",
        dtype=told.llama.dtype_on(models.device.type),
        cb_max_memory_percent=MEMORY_SHARE if models.device.type == "cuda" else None,
        cb_num_blocks=None if models.device.type == "cuda" else 64,
        host="127.0.0.1",
        port=asked.port,
    )


def patch(models: Models) -> None:
    """Puts the picture's route onto the library's server, and random weights where they are asked for."""
    from transformers.cli.serving import model_manager, server

    build = server.build_server

    def build_with_pictures(*arguments: Any, **options: Any) -> FastAPI:
        app: FastAPI = build(*arguments, **options)
        app.include_router(image_router(models, Open()))
        return app

    server.build_server = build_with_pictures
    if models.settings.llama.dummy_weights:
        model_manager.ModelManager._load_model = lambda *_, **__: open_dummy(models.settings, models.device)


def open_dummy(told: Settings, device: torch.device) -> Any:
    """The architecture of the folder's configuration."""
    dtype = getattr(torch, told.llama.dtype_on(device.type))
    return peers.open_model(model_folder.resolve(told), device, dtype, dummy_weights=True)


if __name__ == "__main__":
    main()
