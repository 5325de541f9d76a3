"""``vramgate up``, ``doctor``, ``version``."""

from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from common import settings as settings_module
from frontend import doctor as checks
from frontend.commands import options
from frontend.commands.check import report, show
from frontend.commands.options import Config, Port, TritonPort
from frontend.steps import Steps


def up(
    port: Port = None,
    triton_url: Annotated[str | None, typer.Option(help="Use this running Triton.", metavar="URL")] = None,
    triton_http_port: TritonPort = None,
    triton_grpc_port: TritonPort = None,
    triton_metrics_port: TritonPort = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether it could be started.")] = False,
    config: Config = None,
) -> None:
    """Start everything; Ctrl-C stops it."""
    from frontend.launcher import launch

    environ = options.environ(config) | options.flags(
        {
            ("server", "port"): port,
            ("triton", "url"): triton_url,
            ("triton", "http_port"): triton_http_port,
            ("triton", "grpc_port"): triton_grpc_port,
            ("triton", "metrics_port"): triton_metrics_port,
        }
    )
    settings = settings_module.load(environ)
    if not check:
        launch(settings, environ, Steps(options.console))
    elif not report(settings, options.console):
        raise typer.Exit(1)


def doctor(port: Port = None, config: Config = None) -> None:
    """Check what the service needs; each line says what to do."""
    if not show(checks.examine(options.load(config, port)), options.console):
        raise typer.Exit(1)


def version() -> None:
    """Print the version."""
    options.console.print(f"vramgate {installed_version('vramgate')}", highlight=False)
