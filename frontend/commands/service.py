"""``vramgate up``, ``doctor``, ``version``."""

from importlib.metadata import version as installed_version
from typing import Annotated

import typer
from rich.markup import escape

from common import settings as settings_module
from frontend import doctor as checks
from frontend.commands import options
from frontend.commands.options import Config, Port, TritonPort
from frontend.steps import Steps


def up(
    port: Port = None,
    triton_url: Annotated[str | None, typer.Option(help="Use this running Triton.", metavar="URL")] = None,
    triton_http_port: TritonPort = None,
    triton_grpc_port: TritonPort = None,
    triton_metrics_port: TritonPort = None,
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
    launch(settings_module.load(environ), environ, Steps(options.console))


def doctor(port: Port = None, config: Config = None) -> None:
    """Check what the service needs; each line says what to do."""
    marks = {checks.Level.OK: "[green]✓[/]", checks.Level.NOTE: "[yellow]![/]", checks.Level.BAD: "[red]✗[/]"}
    bad = False
    for finding in checks.examine(options.load(config, port)):
        bad = bad or finding.level is checks.Level.BAD
        text = f"{marks[finding.level]} [bold]{finding.subject}[/]: {escape(finding.says)}"
        text += f"\n  → {escape(finding.advice)}" if finding.advice else ""
        options.console.print(text, highlight=False, soft_wrap=True)
    if bad:
        raise typer.Exit(1)


def version() -> None:
    """Print the version."""
    options.console.print(f"vramgate {installed_version('vramgate')}", highlight=False)
