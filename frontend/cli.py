"""``vramgate``: start the service, ask what a request costs, look at the ledger, find what is wrong."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from common import image_header, report
from common import settings as settings_module
from common.errors import VramgateError
from common.settings import CONFIG_ENV, DEFAULT_FILE, Settings, to_environ
from frontend import doctor as checks
from frontend import report_tables, tables
from frontend.service_client import ServiceClient, local_url
from frontend.steps import Steps

app = typer.Typer(
    help="GPU memory as a bank account, for Llama and UNet behind Triton.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
snapshots = typer.Typer(help="Look at what was written when memory ran out, or write it now.", no_args_is_help=True)
app.add_typer(snapshots, name="snapshots")
console = Console()

REFRESH_S = 0.5

Port = Annotated[int | None, typer.Option(help="Port of the frontend.", min=1, max=65535)]
TritonPort = Annotated[int | None, typer.Option(help="Port of the model server, on loopback.", min=1, max=65535)]
Config = Annotated[Path | None, typer.Option(help="Settings file; ./vramgate.toml where it exists.", metavar="FILE")]
Url = Annotated[str | None, typer.Option(help="Address of the running service.", metavar="URL")]


@app.command()
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

    environ = _environ(config) | _flags(
        {
            ("server", "port"): port,
            ("triton", "url"): triton_url,
            ("triton", "http_port"): triton_http_port,
            ("triton", "grpc_port"): triton_grpc_port,
            ("triton", "metrics_port"): triton_metrics_port,
        }
    )
    launch(settings_module.load(environ), environ, Steps(console))


@app.command()
def quote(
    prompt: Annotated[str | None, typer.Option(help="Text for the language model.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Or only how many tokens it has.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None,
    n: Annotated[int, typer.Option(min=1, help="How many answers.")] = 1,
    image: Annotated[Path | None, typer.Option(help="Or an image to segment.", metavar="FILE")] = None,
    port: Port = None,
    url: Url = None,
    config: Config = None,
) -> None:
    """Say what a request would cost, byte by byte, without running it."""
    if [prompt, prompt_tokens, image].count(None) != 2:
        raise VramgateError("quote: give one of --prompt, --prompt-tokens and --image")
    if image is not None:
        body = _image_body(image, _load(config, port))
    else:
        sizes = {"prompt": prompt, "prompt_tokens": prompt_tokens, "max_tokens": max_tokens, "n": n}
        body = {"model": "llama"} | {key: value for key, value in sizes.items() if value is not None}
    console.print(tables.quote(_client(url, config, port).post("/v1/quote", body)))


@app.command()
def ledger(
    once: Annotated[bool, typer.Option("--once", help="Print it once instead of following it.")] = False,
    port: Port = None,
    url: Url = None,
    config: Config = None,
) -> None:
    """Show accounts, leases and engines; Ctrl-C ends it."""
    client = _client(url, config, port)
    told = client.get("/v1/ledger")
    if once or not console.is_terminal:
        console.print(tables.ledger(told))
        return
    with suppress(KeyboardInterrupt), Live(tables.ledger(told), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(REFRESH_S)
            live.update(tables.ledger(client.get("/v1/ledger")), refresh=True)


@app.command()
def doctor(port: Port = None, config: Config = None) -> None:
    """Check what the service needs; each line says what to do."""
    marks = {checks.Level.OK: "[green]✓[/]", checks.Level.NOTE: "[yellow]![/]", checks.Level.BAD: "[red]✗[/]"}
    bad = False
    for finding in checks.examine(_load(config, port)):
        bad = bad or finding.level is checks.Level.BAD
        text = f"{marks[finding.level]} [bold]{finding.subject}[/]: {escape(finding.says)}"
        text += f"\n  → {escape(finding.advice)}" if finding.advice else ""
        console.print(text, highlight=False, soft_wrap=True)
    if bad:
        raise typer.Exit(1)


@snapshots.command("list")
def list_snapshots(config: Config = None) -> None:
    """Print every snapshot, the newest first."""
    console.print(report_tables.listing(report.readable(report.folder_of(_load(config, None)))))


@snapshots.command("show")
def show_snapshot(
    name: Annotated[str | None, typer.Argument(help="As `list` prints it; the newest that can be read.")] = None,
    config: Config = None,
) -> None:
    """Print who held what, the minute before, and the probable cause."""
    folder = report.folder_of(_load(config, None))
    if name is not None and name not in report.names(folder):
        raise VramgateError(f"there is no snapshot {name!r} in {folder}")
    readable = (found for found, told in report.readable(folder) if isinstance(told, report.Report))
    chosen = name or next(readable, None)
    if chosen is None:
        raise VramgateError(f"there is no snapshot in {folder}")
    console.print(report_tables.snapshot(folder / chosen, report.read(folder / chosen)), highlight=False)


@snapshots.command("take")
def take_snapshot(
    model: Annotated[list[str] | None, typer.Option(help="Of this engine; of all.", metavar="MODEL")] = None,
    triton_http_port: TritonPort = None,
    config: Config = None,
) -> None:
    """Have the running engines write a snapshot each; talks to the model server directly."""
    from frontend.engines import MODELS
    from frontend.triton import Triton

    environ = _environ(config) | _flags({("triton", "http_port"): triton_http_port})
    triton = settings_module.load(environ).triton

    async def take() -> None:
        client = Triton(triton.address)
        await client.start()
        try:
            for one in model or MODELS:
                console.print(await client.snapshot(one), highlight=False, soft_wrap=True, markup=False)
        finally:
            await client.close()

    asyncio.run(take())


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


def _image_body(file: Path, settings: Settings) -> dict[str, object]:
    """What is asked about an image: its size, out of its header."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise VramgateError(f"{file}: {error.strerror}") from None
    header = image_header.read(data, settings.unet.max_pixels)
    return {
        "model": "unet",
        "format": header.format.lower(),
        "height": header.height,
        "width": header.width,
        "encoded_bytes": len(data),
    }


def _client(url: str | None, config: Path | None, port: int | None) -> ServiceClient:
    return ServiceClient(url or local_url(_load(config, port).server))


def _load(config: Path | None, port: int | None) -> Settings:
    return settings_module.load(_environ(config) | _flags({("server", "port"): port}))


def _flags(flags: Mapping[tuple[str, str], object]) -> dict[str, str]:
    """The environment variables that set what was given on the command line."""
    given = {place: value for place, value in flags.items() if value is not None}
    return {name: text for place, value in given.items() for name, text in to_environ(*place, value).items()}


def _environ(config: Path | None) -> dict[str, str]:
    """This process's environment, with the settings file named in full so that every process reads the same."""
    file = config or (DEFAULT_FILE if CONFIG_ENV not in os.environ and DEFAULT_FILE.is_file() else None)
    return dict(os.environ) | ({CONFIG_ENV: str(file.resolve())} if file else {})
