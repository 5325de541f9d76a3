"""Residuals of ``results/prices_h200.json``, as ``prices_h200.png`` beside it: ``python -m loadtests.plot_prices``."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from loadtests import record

MIB = 2**20
KIB = 2**10


def main() -> None:
    """One picture of three panels."""
    told = json.loads((record.RESULTS / "prices_h200.json").read_text(encoding="utf-8"))
    rows = [row for row in told["rows"] if row["section"] == "plain"]
    engines = [row for row in told["rows"] if row["section"] == "standing"]
    figure, panels = plt.subplots(1, 3, figsize=(16, 4.8), layout="constrained")
    _peaks(panels[0], rows)
    _bounds(panels[1], [row for row in rows if "bound" in row])
    _standing(panels[2], engines)
    figure.suptitle(f"{told['machine']}, torch {told['versions']['torch']}, {told['date'][:10]}", fontsize=9)
    path = record.RESULTS / "prices_h200.png"
    figure.savefig(path, dpi=110)
    print(path)


def _peaks(panel: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    for what in sorted({row["what"] for row in rows}):
        mine = [row for row in rows if row["what"] == what]
        off_kib = [abs(row["predicted"] - row["measured"]) / KIB for row in mine]
        exact = sum(not kib for kib in off_kib)
        sizes_mib = [row["measured"] / MIB for row in mine]
        panel.scatter(sizes_mib, off_kib, s=9, alpha=0.6, label=f"{what}: {exact} of {len(mine)} to the byte")
    panel.set(xscale="log", xlabel="measured peak, MiB", ylabel="|predicted - measured|, KiB", title="allocated peak")
    panel.set_yscale("symlog", linthresh=0.5)
    panel.set_ylim(bottom=-0.2)
    panel.legend(fontsize=7)


def _bounds(panel: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    for what in sorted({row["what"] for row in rows}):
        mine = [row for row in rows if row["what"] == what]
        excess_mib = [(row["bound"] - row["reserved"]) / MIB for row in mine]
        under = sum(mib < 0 for mib in excess_mib)
        sizes_mib = [row["reserved"] / MIB for row in mine]
        panel.scatter(sizes_mib, excess_mib, s=9, alpha=0.6, label=f"{what}: {under} of {len(mine)} above the bound")
    panel.axhline(0, color="black", linewidth=0.7)
    panel.set(xscale="log", xlabel="reserved by the call, MiB", ylabel="bound - reserved, MiB", title="reserved bytes")
    panel.legend(fontsize=7)


def _standing(panel: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    names = [f"{row['engine']} {row['dtype']}" for row in rows]
    panel.barh(names, [100 * (row["predicted"] / row["used"] - 1) for row in rows])
    panel.axvline(0, color="black", linewidth=0.7)
    panel.set(xlabel="predicted against NVML's reading, %", title="standing of a loaded engine")
    panel.tick_params(axis="y", labelsize=7)


if __name__ == "__main__":
    main()
