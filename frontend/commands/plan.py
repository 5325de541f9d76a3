"""``vramgate plan``: what a card could serve, before one is bought."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from common import settings as settings_module
from estimator import cards
from frontend import plan as planner
from frontend import plan_views, trace
from frontend.commands import options
from frontend.engine_model import Rates


def plan(
    config: Annotated[str, typer.Option(help="Model: a known name (llama-3-8b) or a config.json.", metavar="MODEL")],
    card: Annotated[list[str], typer.Option(help="Card by name or memory (rtx 4090, 24GiB); repeatable.")],
    requests: Annotated[
        Path, typer.Option("--trace", help="CSV with arrival_s, prompt_tokens, output_tokens[, max_tokens].")
    ],
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="What each request asks for; by default the trace's longest answer.")
    ] = None,
    faster: Annotated[float, typer.Option(min=0.001, help="How many times as fast the requests come.")] = 1.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Deadline of a request, in seconds.")] = 30.0,
    rates: Annotated[Path | None, typer.Option(help="Measured speed: results of loadtests.bench_llama.")] = None,
    bandwidth: Annotated[float, typer.Option(min=1, help="Without it: GB/s that the card reads.")] = 1000.0,
    tflops: Annotated[float, typer.Option(min=0.1, help="And its TFLOP/s in 16 bits.")] = 100.0,
    plot: Annotated[Path | None, typer.Option(help="Also draw the waits into this file.", metavar="FILE")] = None,
    settings: Annotated[Path | None, typer.Option(help="Settings file.", metavar="FILE")] = None,
) -> None:
    """Replay a trace on one or several cards: pages, waits and refusals."""
    conf = settings_module.load(options.environ(settings))
    shape = planner.shape_of(config)
    speed = Rates.from_record(rates) if rates else Rates.guess(shape, bandwidth * 1e9, tflops * 1e12)
    speed = replace(speed, max_batch=conf.llama.max_batch, step_tokens=conf.llama.step_tokens)
    rows = trace.faster(trace.read(requests, max_tokens), faster)
    plans = [planner.make(conf, shape, cards.named(name), rows, speed, timeout) for name in card]
    source = f"measured: {rates}" if rates else f"guessed from {bandwidth:g} GB/s and {tflops:g} TFLOP/s"
    options.console.print(plan_views.table(plans))
    options.console.print(
        f"{len(rows):,} requests in {rows[-1].arrival_s:,.0f} s, a deadline of {timeout:g} s; speed {source}"
    )
    if plot is not None:
        plan_views.draw(plans, plot)
        options.console.print(f"drawn: {plot}")
