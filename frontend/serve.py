"""The frontend's process: ``python -m frontend.serve``.

On a stop signal readiness goes off; after ``server.drain_s``, in which balancers notice, nothing new is admitted;
answers that run may end within ``server.shutdown_s``; what is left is cancelled, its leases are ended, and every
connection to Triton is closed. On SIGHUP the settings are read again, see :mod:`frontend.reload`.
"""

import gc
import math
import signal
import socket
import sys
import time
from types import FrameType

import uvicorn
from fastapi import FastAPI

from common import settings as settings_module
from common.errors import SettingsError
from common.settings import Settings
from frontend import logs, reload, tracing
from frontend.app import create_app
from frontend.last_resort import STUCK
from frontend.protocol import limited_to

KEEP_ALIVE_S = 5
GC_OBJECTS = 10_000
"""Made and not freed between two looks for cycles: some hundred requests."""


class Server(uvicorn.Server):
    """uvicorn, whose stop begins with telling the services."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_s: float = 0.0) -> None:
        super().__init__(config)
        self._app = app
        self._drain_s = drain_s
        self._asked_s: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stops; a second Ctrl-C stops at once. The signal is not raised again, so the process ends with status 0."""
        self.force_exit = self._asked_s is not None and sig == signal.SIGINT
        if self._asked_s is None:
            self._asked_s = time.monotonic()
        self.should_exit = self.should_exit or self.force_exit or not self._drain_s

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to stop now."""
        if self._asked_s is not None and not self.should_exit:
            self._app.state.services.leave()
            self.should_exit = time.monotonic() - self._asked_s >= self._drain_s
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends what runs, within the time for it."""
        self._app.state.services.stop()
        await super().shutdown(sockets)


def main() -> int:
    """Serves until a stop signal; 2 where the settings are wrong, STUCK where the model server needs a restart."""
    try:
        settings = settings_module.load()
        app = create_app(settings)
        end_traces = tracing.export(settings.log.traces)
    except SettingsError as error:
        print(f"vramgate: {error}", file=sys.stderr)
        return 2
    logs.start(settings.log)
    reload.on_hangup(settings)
    _settle_heap()
    Server(configure(settings, app), app, settings.server.drain_s).run()
    end_traces()
    return STUCK if app.state.services.stuck else 0


def _settle_heap() -> None:
    """What is there now stays: the collector of cycles need not look at it again with every few requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_OBJECTS)


def configure(settings: Settings, app: FastAPI) -> uvicorn.Config:
    """One worker, because one process owns the ledger.

    The connection limit is twice what the backstop serves at once: it is only for floods of idle connections.
    """
    return uvicorn.Config(
        app,
        host=settings.server.host,
        port=settings.server.port,
        loop="uvloop",
        http=limited_to(2 * settings.server.max_connections),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(settings.server.shutdown_s),
    )


if __name__ == "__main__":
    sys.exit(main())
