"""``vramgate quote`` and ``ledger``: what a request costs, and what the bank holds."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from common import image_header
from common.errors import VramgateError
from common.settings import Settings
from frontend import offer, plan, tables
from frontend.commands import options
from frontend.commands.options import Config, Port, Url

REFRESH_S = 0.5


def quote(
    prompt: Annotated[str | None, typer.Option(help="Text for the language model.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Or only how many tokens it has.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None,
    n: Annotated[int, typer.Option(min=1, help="How many answers.")] = 1,
    image: Annotated[Path | None, typer.Option(help="Or an image to segment.", metavar="FILE")] = None,
    shape: Annotated[str | None, typer.Option(help="Without a service: a model by name.", metavar="MODEL")] = None,
    card: Annotated[str, typer.Option(help="The card it would run on, by name or size.")] = "24GiB",
    plain: Annotated[bool, typer.Option("--plain", help="As a plain transformers model, n prompts at once.")] = False,
    padded: Annotated[bool, typer.Option("--padded", help="Whether its prompts are filled up to one length.")] = False,
    port: Port = None,
    url: Url = None,
    config: Config = None,
) -> None:
    """Say what a request would cost, byte by byte, without running it."""
    if shape is not None:
        settings, known = options.load(config, port), plan.shape_of(shape)
        if plain:
            call = offer.call_of(n, prompt_tokens, max_tokens, padded)
            told = tables.plain_offer(offer.of_plain(known, settings.llama.dtype_on("cuda"), call))
        else:
            request = (prompt_tokens, max_tokens or settings.llama.default_max_tokens, n) if prompt_tokens else None
            told = tables.offer(offer.of_engine(settings, known, card, request))
        options.console.print(told)
        return
    if [prompt, prompt_tokens, image].count(None) != 2:
        raise VramgateError("quote: give one of --prompt, --prompt-tokens and --image")
    if image is not None:
        body = _image_body(image, options.load(config, port))
    else:
        sizes = {"prompt": prompt, "prompt_tokens": prompt_tokens, "max_tokens": max_tokens, "n": n}
        body = {"model": "llama"} | {key: value for key, value in sizes.items() if value is not None}
    options.console.print(tables.quote(options.client(url, config, port).post("/v1/quote", body)))


def ledger(
    once: Annotated[bool, typer.Option("--once", help="Print it once instead of following it.")] = False,
    port: Port = None,
    url: Url = None,
    config: Config = None,
) -> None:
    """Show accounts, leases and engines; Ctrl-C ends it."""
    client = options.client(url, config, port)
    told = client.get("/v1/ledger")
    if once or not options.console.is_terminal:
        options.console.print(tables.ledger(told))
        return
    with suppress(KeyboardInterrupt), Live(tables.ledger(told), console=options.console, auto_refresh=False) as live:
        while True:
            time.sleep(REFRESH_S)
            live.update(tables.ledger(client.get("/v1/ledger")), refresh=True)


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
