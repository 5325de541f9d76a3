"""``vramgate snapshots``: what was written when memory ran out, or write it now."""

import asyncio
from typing import Annotated

import typer

from common import report, settings
from common.errors import VramgateError
from frontend import report_tables
from frontend.commands import options
from frontend.commands.options import Config, TritonPort

app = typer.Typer(help="Look at what was written when memory ran out, or write it now.", no_args_is_help=True)


@app.command("list")
def list_snapshots(config: Config = None) -> None:
    """Print every snapshot, the newest first."""
    options.console.print(report_tables.listing(report.readable(report.folder_of(options.load(config, None)))))


@app.command("show")
def show_snapshot(
    name: Annotated[str | None, typer.Argument(help="As `list` prints it; the newest that can be read.")] = None,
    config: Config = None,
) -> None:
    """Print who held what, the minute before, and the probable cause."""
    folder = report.folder_of(options.load(config, None))
    if name is not None and name not in report.names(folder):
        raise VramgateError(f"there is no snapshot {name!r} in {folder}")
    readable = (found for found, told in report.readable(folder) if isinstance(told, report.Report))
    chosen = name or next(readable, None)
    if chosen is None:
        raise VramgateError(f"there is no snapshot in {folder}")
    options.console.print(report_tables.snapshot(folder / chosen, report.read(folder / chosen)), highlight=False)


@app.command("take")
def take_snapshot(
    model: Annotated[list[str] | None, typer.Option(help="Of this engine; of all.", metavar="MODEL")] = None,
    triton_http_port: TritonPort = None,
    config: Config = None,
) -> None:
    """Have the running engines write a snapshot each; talks to the model server directly."""
    from frontend.engines import MODELS
    from frontend.triton import Triton

    environ = options.environ(config) | options.flags({("triton", "http_port"): triton_http_port})
    triton = settings.load(environ).triton

    async def take() -> None:
        client = Triton(triton.address)
        await client.start()
        try:
            for one in model or MODELS:
                options.console.print(await client.snapshot(one), highlight=False, soft_wrap=True, markup=False)
        finally:
            await client.close()

    asyncio.run(take())
