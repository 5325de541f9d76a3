"""The web application: which middlewares, which routes, which services."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from common.settings import Settings
from frontend import guests, keyfile, refusals
from frontend.access import Door, KeyRing
from frontend.envelope import Envelope
from frontend.express import Express
from frontend.limits import Backstop, BodyLimit
from frontend.routes import bank, health, kserve, openai, predict, segment
from frontend.services import Services, open_services


def create_app(settings: Settings, services: Services | None = None) -> FastAPI:
    """The application; it opens and closes its services itself, unless it is given some that are the caller's.

    Raises SettingsError where it would be open to the network, or its key file cannot be used.
    """
    keyfile.require_guard(settings)
    guests.require(settings)
    keys = KeyRing(settings.tenants.file, time.monotonic)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if services is not None:
            yield
            return
        async with open_services(settings) as opened:
            app.state.services = opened
            yield

    app = FastAPI(title="vramgate", lifespan=lifespan, redirect_slashes=False, openapi_url=None)
    if services is not None:
        app.state.services = services
    # the last added is the outermost
    app.add_middleware(Express, paths=kserve.INFER_PATHS, endpoint=kserve.infer)
    app.add_middleware(BodyLimit, max_bytes=settings.server.max_body_bytes, pause_s=settings.server.request_timeout_s)
    app.add_middleware(Backstop, max_requests=settings.server.max_connections)
    app.add_middleware(Door, keys=keys)
    app.add_middleware(Envelope)
    refusals.install(app)
    for routes in (openai, segment, kserve, predict, bank, health):
        app.include_router(routes.router)
    return app
