"""What all commands share: their common options, the settings in force, the way to the running service."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from common import settings as settings_module
from common.settings import CONFIG_ENV, DEFAULT_FILE, Settings, to_environ
from frontend.service_client import ServiceClient, local_url

console = Console()

Port = Annotated[int | None, typer.Option(help="Port of the frontend.", min=1, max=65535)]
TritonPort = Annotated[int | None, typer.Option(help="Port of the model server, on loopback.", min=1, max=65535)]
Config = Annotated[Path | None, typer.Option(help="Settings file; ./vramgate.toml where it exists.", metavar="FILE")]
Url = Annotated[str | None, typer.Option(help="Address of the running service.", metavar="URL")]


def client(url: str | None, config: Path | None, port: int | None) -> ServiceClient:
    """The running service: at `url`, or where the settings say."""
    settings = load(config, port)
    return ServiceClient(url or local_url(settings.server), key=settings.tenants.key)


def load(config: Path | None, port: int | None) -> Settings:
    """The settings in force, with what was given on the command line."""
    return settings_module.load(environ(config) | flags({("server", "port"): port}))


def flags(given: Mapping[tuple[str, str], object]) -> dict[str, str]:
    """The environment variables that set what was given on the command line."""
    set_here = {place: value for place, value in given.items() if value is not None}
    return {name: text for place, value in set_here.items() for name, text in to_environ(*place, value).items()}


def environ(config: Path | None) -> dict[str, str]:
    """This process's environment, with the settings file named in full so that every process reads the same."""
    file = config or (DEFAULT_FILE if CONFIG_ENV not in os.environ and DEFAULT_FILE.is_file() else None)
    return dict(os.environ) | ({CONFIG_ENV: str(file.resolve())} if file else {})
