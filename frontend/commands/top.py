"""``vramgate top``: the bank on one screen."""

import time
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.live import Live

from frontend import top_view
from frontend.commands import options
from frontend.commands.options import Config, Port, Url


def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once instead of following it.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    port: Port = None,
    url: Url = None,
    config: Config = None,
) -> None:
    """Follow accounts, engines, leases and statements on one screen; Ctrl-C ends it."""
    client = options.client(url, config, port)

    def look() -> RenderableType:
        ledger, statements = client.get("/v1/ledger"), client.get(f"/v1/statements?limit={top_view.STATEMENTS}")
        return top_view.render(client.base_url, ledger, statements, time.time())

    if once or not options.console.is_terminal:
        options.console.print(look())
        return
    with suppress(KeyboardInterrupt), Live(look(), console=options.console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(every)
            live.update(look(), refresh=True)
