"""Routes of the baselines: shapes of the OpenAI API and of ``/v1/segment``, with a gate in front of the work."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import torch
import uvicorn
from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import iterate_in_threadpool

from loadtests.baselines.models import Models, to_png


class Gate(Protocol):
    """Who may run now."""

    def text(self, prompt_tokens: int, max_tokens: int) -> AbstractAsyncContextManager[None]:
        """Held while a text is made; raises HTTPException."""

    def image(self) -> AbstractAsyncContextManager[None]:
        """Held while a picture is segmented; raises HTTPException."""


def text_router(models: Models, gate: Gate) -> APIRouter:
    """``/v1/chat/completions`` and ``/v1/completions``."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        form = await request.json()
        ids = await asyncio.to_thread(models.chat_prompt, form["messages"])
        most = int(form.get("max_tokens", 128))
        held = gate.text(len(ids), most)
        await held.__aenter__()
        return StreamingResponse(_events(models, held, ids, most), media_type="text/event-stream")

    @router.post("/v1/completions")
    async def complete(request: Request) -> Response:
        form = await request.json()
        ids = await asyncio.to_thread(models.prompt, form["prompt"])
        most = int(form.get("max_tokens", 128))
        async with gate.text(len(ids), most):
            pieces = await asyncio.to_thread(list, models.stream(ids, most))
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(pieces)}
        return JSONResponse({"choices": [{"index": 0, "text": "".join(pieces)}], "usage": usage})

    return router


def image_router(models: Models, gate: Gate) -> APIRouter:
    """``/v1/segment``, and ``/stats`` with what torch's allocator holds."""
    router = APIRouter()

    @router.post("/v1/segment")
    async def segment(request: Request) -> Response:
        picture = await request.body()
        async with gate.image():
            png = await asyncio.to_thread(lambda: to_png(models.segment(picture)))
        return Response(png, media_type="image/png")

    @router.get("/stats")
    async def stats() -> dict[str, int]:
        if models.device.type != "cuda":
            return {}
        return {"allocated_bytes": torch.cuda.memory_allocated(), "reserved_bytes": torch.cuda.memory_reserved()}

    return router


def serve(models: Models, gate: Gate, port: int) -> None:
    """Loads both models, and answers until it is stopped; a failure is a 500 with its text, as people have it."""
    app = FastAPI()
    app.include_router(text_router(models, gate))
    app.include_router(image_router(models, gate))
    app.add_exception_handler(Exception, _fail)
    assert models.llm is not None
    assert models.unet is not None
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


async def _events(
    models: Models, held: AbstractAsyncContextManager[None], ids: list[int], most: int
) -> AsyncIterator[str]:
    """The answer as it comes; the gate opens again when it has ended, or its client has gone."""
    pieces = 0
    try:
        async for piece in iterate_in_threadpool(_nonempty(models.stream(ids, most))):
            pieces += 1
            yield _event({"choices": [{"index": 0, "delta": {"content": piece}}]})
        usage = {"prompt_tokens": len(ids), "completion_tokens": pieces}
        yield _event({"choices": [], "usage": usage}) + "data: [DONE]\n\n"
    except Exception as error:
        yield _event({"error": {"message": f"{type(error).__name__}: {error}"[:300]}})
    finally:
        await held.__aexit__(None, None, None)


def _nonempty(pieces: Iterator[str]) -> Iterator[str]:
    return (piece for piece in pieces if piece)


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"


async def _fail(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code)
    return JSONResponse({"error": {"message": f"{type(error).__name__}: {error}"[:300]}}, 500)
