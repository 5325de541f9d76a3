"""``vramgate profile``: where one request's memory goes, by operator; the run itself goes on beside, with torch."""

import json
import subprocess
import sys
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from common.errors import VramgateError
from frontend.commands import options
from frontend.commands.options import Config
from frontend.tables import size


def profile(
    model: Annotated[str, typer.Argument(help="llama or unet.")],
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Of the prompt (llama).")] = 512,
    tiles: Annotated[int, typer.Option(min=1, help="In the batch (unet).")] = 1,
    device: Annotated[str | None, typer.Option(help="cpu, or what card.device takes.")] = None,
    config: Config = None,
) -> None:
    """Show which operators take memory during one request. Loads the model once more, beside a running service."""
    command = [sys.executable, "-P", "-m", "backend.profile", model]
    command += ["--prompt-tokens", str(prompt_tokens), "--tiles", str(tiles)]
    environ = options.environ(config) | options.flags({("card", "device"): device})
    with options.console.status(f"running {model} once, in a process of its own"):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise VramgateError(f"profile: {_reason(done.stderr)}")
    options.console.print(render(json.loads(done.stdout.splitlines()[-1])))


def render(told: dict[str, Any]) -> RenderableType:
    """What ``backend.profile`` printed, as tables."""
    total = told["allocated_bytes"] or 1
    parts = _table("part", "handed out", "share")
    for name, bytes_ in told["parts"].items():
        parts.add_row(name, size(bytes_), f"{bytes_ / total:.0%}")
    operators = _table("operator", "handed out", "share", "calls")
    for one in told["operators"]:
        share = one["allocated_bytes"] / total
        operators.add_row(one["name"], size(one["allocated_bytes"]), f"{share:.0%}", f"{one['calls']:,}")
    peak = "not told on the CPU" if told["peak_bytes"] is None else size(told["peak_bytes"])
    head = Text(f"{told['model']} on {told['device']}: {told['work']}", "bold")
    sums = f"standing {size(told['standing_bytes'])}; handed out {size(told['allocated_bytes'])}; peak beyond: {peak}"
    return Group(head, Text(sums), Text(), parts, Text(), operators)


def _reason(text: str) -> str:
    """The last line that is ours, else the last line."""
    lines = [line for line in text.splitlines() if line and not line.startswith("USDT:")] or ["it gave no reason"]
    ours = [line.removeprefix("vramgate: ") for line in lines if line.startswith("vramgate: ")]
    return (ours or lines)[-1]


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table
