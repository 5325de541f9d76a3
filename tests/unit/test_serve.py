import asyncio
import logging
import signal
from dataclasses import dataclass, field

import aiohttp
import pytest
from fastapi import FastAPI

from common.errors import SettingsError
from common.settings import Settings
from frontend import reload
from frontend.serve import Server, configure
from tests.unit.web import run, until


@dataclass
class Told:
    """Stands for the services, and notes what it is told."""

    words: list[str] = field(default_factory=list)

    def leave(self) -> None:
        if "leave" not in self.words:
            self.words.append("leave")

    def stop(self) -> None:
        self.words.append("stop")


async def _get(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status


def test_after_a_stop_signal_requests_are_served_until_balancers_have_seen_it() -> None:
    async def test() -> None:
        app = FastAPI()
        app.state.services = told = Told()
        app.add_api_route("/x", lambda: {"words": list(told.words)})
        server = Server(configure(Settings(), app), app, drain_s=0.6)
        server.config.port = 0
        task = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/x"
        server.handle_exit(signal.SIGTERM, None)
        await until(lambda: told.words == ["leave"])
        assert await _get(url) == 200
        await task
        assert told.words == ["leave", "stop"]

    run(test)


def test_without_a_drain_it_stops_at_once_and_a_second_ctrl_c_does_too() -> None:
    app = FastAPI()
    server = Server(configure(Settings(), app), app)
    server.handle_exit(signal.SIGINT, None)
    assert (server.should_exit, server.force_exit) == (True, False)
    patient = Server(configure(Settings(), app), app, drain_s=60)
    patient.handle_exit(signal.SIGINT, None)
    assert not patient.should_exit
    patient.handle_exit(signal.SIGINT, None)
    assert (patient.should_exit, patient.force_exit) == (True, True)


def test_settings_read_again_change_the_logs_level_and_name_what_needs_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = Settings.model_validate({"log": {"level": "warning"}, "llama": {"max_batch": 3}})
    before = logging.getLogger().level
    try:
        reload.again(Settings(), lambda: wanted)
        assert logging.getLogger().level == logging.WARNING
    finally:
        logging.getLogger().setLevel(before)
    assert "these take effect with a restart: llama.max_batch" in caplog.text


def test_settings_that_cannot_be_read_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Settings:
        raise SettingsError("card.margin: no")

    before = logging.getLogger().level
    reload.again(Settings(), broken)
    assert logging.getLogger().level == before
    assert "not read again: card.margin: no" in caplog.text
