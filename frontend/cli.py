"""``vramgate``: start the service, ask what a request costs, look at the ledger, find what is wrong."""

import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from common import settings as settings_module
from common.errors import VramgateError
from common.settings import CONFIG_ENV, DEFAULT_FILE, to_environ
from frontend import doctor as checks
from frontend.steps import Steps

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
console = Console()

Port = Annotated[int | None, typer.Option(help="Port of the frontend.", min=1, max=65535)]
TritonUrl = Annotated[
    str | None, typer.Option(help="Use the Triton that runs at this address, start none.", metavar="URL")
]
Config = Annotated[Path | None, typer.Option(help="Settings file; ./vramgate.toml where it exists.", metavar="FILE")]
TritonPort = Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the embedded Triton.")]


@app.command()
def up(
    port: Port = None,
    triton_url: TritonUrl = None,
    triton_http_port: TritonPort = None,
    triton_grpc_port: TritonPort = None,
    triton_metrics_port: TritonPort = None,
    config: Config = None,
) -> None:
    """Start everything; Ctrl-C stops it."""
    from frontend.launcher import launch

    environ = _environ(config)
    flags = {
        ("server", "port"): port,
        ("triton", "url"): triton_url,
        ("triton", "http_port"): triton_http_port,
        ("triton", "grpc_port"): triton_grpc_port,
        ("triton", "metrics_port"): triton_metrics_port,
    }
    for (section, key), value in flags.items():
        if value is not None:
            environ |= to_environ(section, key, value)
    launch(settings_module.load(environ), environ, Steps(console))


@app.command()
def doctor(config: Config = None) -> None:
    """Check what the service needs; each line says what to do."""
    marks = {checks.Level.OK: "[green]✓[/]", checks.Level.NOTE: "[yellow]![/]", checks.Level.BAD: "[red]✗[/]"}
    findings = []
    for finding in checks.examine(settings_module.load(_environ(config))):
        findings.append(finding)
        text = f"{marks[finding.level]} [bold]{finding.subject}[/]: {escape(finding.says)}"
        text += f"\n  → {escape(finding.advice)}" if finding.advice else ""
        console.print(text, highlight=False, soft_wrap=True)
    if any(finding.level is checks.Level.BAD for finding in findings):
        raise typer.Exit(1)


@app.command()
def version() -> None:
    """Print the version."""
    console.print(f"vramgate {installed_version('vramgate')}", highlight=False)


def main() -> None:
    """The console script: an error of ours is one clear line and exit status 2."""
    try:
        app()
    except VramgateError as error:
        print(f"vramgate: {error}", file=sys.stderr)
        sys.exit(2)


def _environ(config: Path | None) -> dict[str, str]:
    """This process's environment, with the settings file named in full so that every process reads the same."""
    file = config or (DEFAULT_FILE if CONFIG_ENV not in os.environ and DEFAULT_FILE.is_file() else None)
    return dict(os.environ) | ({CONFIG_ENV: str(file.resolve())} if file else {})
