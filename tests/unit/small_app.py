"""A small app with everything that stands around a route."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from common.errors import InvalidRequest, NeverFits, NotNow, RequestError, SettingsError
from common.settings import Settings
from frontend import record
from frontend.app import create_app
from frontend.disconnect import unless_disconnected
from frontend.metrics import Metrics
from frontend.services import Services
from tests.unit.web import serving_app

SECRET = "my secret prompt"
SETTINGS = Settings.model_validate({"server": {"max_body_bytes": 1000, "max_connections": 4}})

probes = APIRouter()


@probes.post("/probe/read")
async def read(request: Request) -> dict[str, int]:
    record.current().model = "llama"
    record.current().price_bytes = 123
    return {"bytes": len(await request.body())}


@probes.get("/probe/refuse/{what}")
async def refuse(what: str) -> None:
    errors: dict[str, RequestError] = {
        "now": NotNow("not now", numbers={"price_bytes": 7}, retry_after_s=1.2),
        "never": NeverFits("never", numbers={"price_bytes": 7, "capacity_bytes": 5}),
        "value": InvalidRequest("wrong", param="n"),
    }
    raise errors[what]


@probes.get("/probe/fail")
async def fail() -> None:
    raise ValueError(SECRET)


@probes.get("/probe/misconfigured")
async def misconfigured() -> None:
    raise SettingsError("llama.model: no such folder")


@probes.get("/probe/number")
async def number(value: int) -> int:
    return value


@probes.get("/probe/break")
async def break_off() -> StreamingResponse:
    async def parts() -> AsyncIterator[str]:
        yield "begun"
        await asyncio.sleep(0.05)
        raise ValueError(SECRET)

    return StreamingResponse(parts())


@probes.get("/probe/wait")
async def wait(request: Request) -> Response:
    gate: asyncio.Event = request.app.state.gate
    request.app.state.waiting += 1
    await unless_disconnected(request, gate.wait())
    return Response("passed")


def make_app() -> FastAPI:
    fake = SimpleNamespace(metrics=Metrics(), stop=lambda: None)
    app = create_app(SETTINGS, cast(Services, fake))
    app.include_router(probes)
    app.state.gate, app.state.waiting = asyncio.Event(), 0
    return app


@asynccontextmanager
async def served() -> AsyncIterator[tuple[aiohttp.ClientSession, FastAPI]]:
    app = make_app()
    async with serving_app(app, SETTINGS) as url, aiohttp.ClientSession(url) as client:
        yield client, app


async def status_of(client: aiohttp.ClientSession, method: str, path: str, **options: Any) -> int:
    async with client.request(method, path, **options) as answer:
        await answer.read()
        return answer.status


def rendered(app: FastAPI) -> str:
    return str(app.state.services.metrics.render().decode())
