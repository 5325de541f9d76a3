"""``vramgate calibrate``: measure a plain model on the card at hand; the measuring itself runs beside, with torch."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from estimator.profile import ALLOCATOR_ENV


def calibrate(
    model: Annotated[str, typer.Argument(help="A shape by name (llama-3-8b), or unet-WIDTHxCLASSES.")],
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "bfloat16",
    out: Annotated[Path | None, typer.Option(help="Profile to write; MODEL-DTYPE.json here.", metavar="FILE")] = None,
    allocator: Annotated[
        str, typer.Option(help=f"What {ALLOCATOR_ENV} will be where the model runs.")
    ] = "expandable_segments:True",
) -> None:
    """Measure a plain model on this card: the bound on what it reserves, for the `card` account."""
    file = out or Path(f"{model}-{dtype}.json")
    command = [sys.executable, "-m", "backend.calibrate", model, "--dtype", dtype, "--out", str(file)]
    done = subprocess.run(command, env=os.environ | {ALLOCATOR_ENV: allocator}, check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)
