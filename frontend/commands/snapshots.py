"""``vramgate snapshots``: what was written when memory ran out, or write it now."""

import asyncio
import shutil
from pathlib import Path
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
    path = _find(folder, name) if name is not None else _newest(folder)
    options.console.print(report_tables.snapshot(path, report.read(path)), highlight=False)


@app.command("diff")
def compare_snapshots(
    first: Annotated[str, typer.Argument(help="As `list` prints it.")],
    second: Annotated[str, typer.Argument(help="Another one.")],
    config: Config = None,
) -> None:
    """Print what changed from one snapshot to another, line by line."""
    folder = report.folder_of(options.load(config, None))
    one, other = report.read(_find(folder, first)), report.read(_find(folder, second))
    options.console.print(report_tables.difference((first, second), one, other), highlight=False)


@app.command("prune")
def prune_snapshots(
    keep: Annotated[int, typer.Option(min=0, help="Newest of each reason that stay.")] = 1,
    config: Config = None,
) -> None:
    """Remove old snapshots; the engines themselves keep three of each reason."""
    folder = report.folder_of(options.load(config, None))
    for name in report.surplus(folder, keep):
        path = folder / name
        try:
            path.unlink() if path.is_symlink() else shutil.rmtree(path)
        except OSError as error:
            raise VramgateError(f"{path} cannot be removed: {error.strerror}") from None
        options.console.print(f"removed {name}", highlight=False, soft_wrap=True, markup=False)


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


def _find(folder: Path, name: str) -> Path:
    """The snapshot of this name; raises VramgateError, also for what is no name of one."""
    if name not in report.names(folder):
        raise VramgateError(f"there is no snapshot {name!r} in {folder}")
    return folder / name


def _newest(folder: Path) -> Path:
    """The newest snapshot that can be read; raises VramgateError."""
    for name, told in report.readable(folder):
        if isinstance(told, report.Report):
            return folder / name
    raise VramgateError(f"there is no snapshot in {folder}")
