"""``vramgate openapi``: the HTTP contract, for generators and checkers."""

import json
from pathlib import Path
from typing import Annotated

import typer


def openapi(
    out: Annotated[Path | None, typer.Option(help="Write it there instead of printing it.", metavar="FILE")] = None,
) -> None:
    """Print the HTTP contract as OpenAPI 3.1."""
    from frontend.openapi import document

    text = json.dumps(document(), indent=1, ensure_ascii=False) + "\n"
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
