"""A campaign's result: figures and verdicts as JSON, tables and plots as a page."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtests import record
from loadtests.campaigns import figures as figures_module
from loadtests.campaigns import gates
from loadtests.campaigns.campaign import Campaign
from loadtests.campaigns.figures import Figures
from loadtests.campaigns.gates import Verdict
from loadtests.reports import raw
from loadtests.reports.raw import Run

GOODPUT = "goodput_per_s"


def write(campaign: Campaign, folders: list[Path], out: Path) -> list[Verdict]:
    """Reads the runs below `folders`; writes ``NAME.json``, ``NAME.md`` and ``NAME.html`` into `out`.

    The page is left out where matplotlib is missing. The verdicts are those on our own service; none without it.
    Raises SettingsError.
    """
    runs = raw.read_all(folders)
    verdicts = judge(campaign, runs)
    table = {run.name: run.phases(campaign) for run in runs}
    path = record.write(
        campaign.name, flat(runs, table), rows(runs, table, verdicts), about=runs[0].told["about"], folder=out
    )
    print(path)
    if importlib.util.find_spec("matplotlib") is None:
        print("matplotlib is not installed: no page was made")
    else:
        from loadtests.reports import page

        for path in page.write(campaign, runs, table, verdicts, out):
            print(path)
    return verdicts


def judge(campaign: Campaign, runs: Sequence[Run]) -> list[Verdict]:
    """A verdict for every gate of the campaign over our own service; none where it was not measured."""
    return [verdict for run in runs if run.ours for verdict in gates.judge(campaign.gates, run.whole())]


def flat(runs: Sequence[Run], table: dict[str, dict[str, Figures]]) -> Figures:
    """Every figure under one name: ours plainly, others behind theirs, a phase's with the phase at its end."""
    found: Figures = {}
    for run in runs:
        before = "" if run.ours else f"{run.name}."
        paying = [outcome for outcome in run.outcomes if outcome.kind.paying]
        found |= {f"{before}{end}_share": figures_module.share(paying, end) for end in figures_module.SHARES}
        found |= {before + name: value for name, value in run.whole().items()}
        for phase, figures in table[run.name].items():
            found |= {f"{before}{name}_{phase}": value for name, value in figures.items()}
    return found | goodput_ratios(runs, table)


def goodput_ratios(runs: Sequence[Run], table: dict[str, dict[str, Figures]]) -> Figures:
    """For each phase, our good answers per second over those of the best of the others; nothing without others."""
    ours = [run.name for run in runs if run.ours]
    others = [run.name for run in runs if not run.ours]
    if not ours or not others:
        return {}
    found = {}
    for phase, figures in table[ours[0]].items():
        best = max(table[name][phase][GOODPUT] for name in others)
        if best > 0:
            found[f"goodput_ratio_{phase}"] = figures[GOODPUT] / best
    return found


def rows(
    runs: Sequence[Run], table: dict[str, dict[str, Figures]], verdicts: Sequence[Verdict]
) -> list[dict[str, Any]]:
    """What stands behind the figures."""
    found: list[dict[str, Any]] = [
        {"gate": v.gate, "measured": v.measured, "limit": v.limit, "holds": v.holds} for v in verdicts
    ]
    for run in runs:
        found += [{"contestant": run.name, "phase": phase} | figures for phase, figures in table[run.name].items()]
        kinds = {str(kind): dict(ends) for kind, ends in figures_module.kinds(run.outcomes).items()}
        found.append({"contestant": run.name, "kinds": kinds, "run": run.told})
    return found
