"""A campaign's page, with its plots inside, and its table in Markdown."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from loadtests.campaigns.campaign import Campaign
from loadtests.campaigns.figures import Figures, kinds
from loadtests.campaigns.gates import Verdict
from loadtests.reports import plots
from loadtests.reports.raw import Run

TEMPLATES = Path(__file__).parent
MAX_REASONS = 25
COLUMNS = (
    ("good", "good_share", "percent"),
    ("late", "late_share", "percent"),
    ("expired", "expired_share", "percent"),
    ("refused", "refused_share", "percent"),
    ("OOM", "oom_share", "percent"),
    ("error", "error_share", "percent"),
    ("hung", "hung_share", "percent"),
    ("offered/s", "offered_per_s", "number"),
    ("good/s", "goodput_per_s", "number"),
    ("good tokens/s", "good_tokens_per_s", "number"),
    ("TTFT p50 s", "ttft_p50_s", "number"),
    ("p95", "ttft_p95_s", "number"),
    ("latency p50 s", "latency_p50_s", "number"),
    ("p95 ", "latency_p95_s", "number"),
    ("refusal p95 s", "refusal_p95_s", "number"),
    ("pages held", "account_use", "percent"),
)
"""Heading, figure of a phase, form."""


def write(
    campaign: Campaign,
    runs: Sequence[Run],
    table: Mapping[str, Mapping[str, Figures]],
    verdicts: Sequence[Verdict],
    out: Path,
) -> tuple[Path, Path]:
    """Writes ``NAME.md`` and ``NAME.html`` into `out`."""
    told = {
        "campaign": campaign,
        "traffic": json.loads(campaign.traffic.model_dump_json()),
        "runs": runs,
        "about": runs[0].told["about"],
        "verdicts": verdicts,
        "headings": [heading.strip() for heading, _, _ in COLUMNS],
        "rows": [
            (run.name, phase, [_cell(figures.get(name), form) for _, name, form in COLUMNS])
            for phase in table[runs[0].name]
            for run in runs
            for figures in [table[run.name][phase]]
        ],
        "reasons": {run.name: list(run.refusals().items())[:MAX_REASONS] for run in runs},
        "kinds": {run.name: _kinds(run) for run in runs},
    }
    pages = (out / f"{campaign.name}.md", out / f"{campaign.name}.html")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=lambda name: bool(name and ".html" in name),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for path, pictures in zip(pages, ({}, draw(campaign, runs)), strict=True):
        template = environment.get_template(f"page{path.suffix}.jinja")
        path.write_text(template.render(told, pictures=pictures), encoding="utf-8")
    return pages


def draw(campaign: Campaign, runs: Sequence[Run]) -> dict[str, str]:
    """Caption -> PNG in base64."""
    pictures: dict[str, bytes | None] = {
        "What became of the requests for work": plots.shares(runs, campaign),
        "How long it took": plots.waits(runs, campaign),
    }
    for run in runs:
        pictures |= {
            f"{run.name}: over time": plots.ends_over_time(run, campaign),
            f"{run.name}: memory over time": plots.memory(run),
            f"{run.name}: quoted, held, peak": plots.prices(run),
            f"{run.name}: resident memory of its processes": plots.resident(run),
        }
    return {caption: base64.b64encode(png).decode() for caption, png in pictures.items() if png is not None}


def _kinds(run: Run) -> list[tuple[str, str]]:
    return [
        (str(kind), ", ".join(f"{count} {end}" for end, count in sorted(ends.items())))
        for kind, ends in sorted(kinds(run.outcomes).items())
    ]


def _cell(value: Any, form: str) -> str:
    if value is None:
        return "-"
    if form == "percent":
        return f"{100 * value:.1f} %"
    return f"{value:.3g}"
