"""A plan for people: a table, and a picture."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from common.errors import VramgateError
from frontend.plan import Plan

GIB = 2**30


def table(plans: Sequence[Plan]) -> Table:
    """One column a card."""
    view = Table("", *(plan.card.name for plan in plans), title="What the cards can serve")
    rows = {
        "grant of the language model": [f"{plan.llama_bytes / GIB:.2f} GiB" for plan in plans],
        "pages": [f"{plan.limits.pages:,} of {plan.limits.page_tokens} tokens" for plan in plans],
        "tile slots beside them": [str(plan.tile_slots) for plan in plans],
        "requests at once, mean price": [f"{_capacity(plan) / max(1, plan.mean_price_bytes):.1f}" for plan in plans],
        "fit at once": [f"{plan.at_once_share:.1%}" for plan in plans],
        "ended in time": [f"{plan.in_time_share:.1%}" for plan in plans],
        "wait p50 / p95 / p99": [_waits(plan) for plan in plans],
        "refused at once": [f"{plan.refused_share('at_once'):.1%}" for plan in plans],
        "refused after waiting": [f"{plan.refused_share('after_waiting'):.1%}" for plan in plans],
        "never fit": [f"{plan.refused_share('never_fits'):.1%}" for plan in plans],
    }
    for name, cells in rows.items():
        view.add_row(name, *cells)
    return view


def draw(plans: Sequence[Plan], path: Path) -> None:
    """The share of requests that got their bytes within so many seconds, a line for each card, as an image file.

    Raises VramgateError where matplotlib is missing or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise VramgateError("plan: a picture needs matplotlib: pip install 'vramgate[loadtest]'") from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for plan in plans:
        waits_s = plan.waits_s()
        shares = [(index + 1) / len(plan.outcomes) for index in range(len(waits_s))]
        axes.step(waits_s, shares, where="post", label=f"{plan.card.name}: {plan.limits.pages:,} pages")
    axes.set(xlabel="seconds of waiting", ylabel="share of all requests that have their bytes", ylim=(0, 1.02))
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise VramgateError(f"plan: {path} cannot be written: {error}") from None


def _capacity(plan: Plan) -> int:
    return plan.limits.pages * plan.limits.page_bytes


def _waits(plan: Plan) -> str:
    waits_s = plan.waits_s()
    if not waits_s:
        return "nobody was served"
    return (
        " / ".join(f"{waits_s[min(len(waits_s) - 1, int(share * len(waits_s)))]:.2f}" for share in (0.5, 0.95, 0.99))
        + " s"
    )
