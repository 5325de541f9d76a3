"""``vramgate check``: is a configuration one that could be started here?"""

from collections.abc import Iterable, Iterator
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from common.settings import Settings
from frontend import doctor
from frontend.commands import options
from frontend.commands.options import Config
from frontend.doctor import Finding, Level

MARKS = {Level.OK: "[green]✓[/]", Level.NOTE: "[yellow]![/]", Level.BAD: "[red]✗[/]"}
SECRETS = frozenset({"triton.admin_key", "tenants.key"})


def check(config: Config = None) -> None:
    """Read the settings, say which are not the defaults, and check what they need; nothing is started or changed."""
    if not report(options.load(config, None), options.console):
        raise typer.Exit(1)


def report(settings: Settings, console: Console) -> bool:
    """Prints what `settings` say and need; whether the service could be started with them."""
    told = dict(differences(settings))
    console.print("settings: " + ("all defaults" if not told else "beside the defaults"), style="bold")
    for key, value in told.items():
        console.print(f"  {key} = {value!r}", markup=False, highlight=False, soft_wrap=True)
    return show(doctor.requirements(settings), console)


def show(findings: Iterable[Finding], console: Console) -> bool:
    """Prints the findings, with what to do about each; whether none is bad."""
    good = True
    for finding in findings:
        good = good and finding.level is not Level.BAD
        text = f"{MARKS[finding.level]} [bold]{finding.subject}[/]: {escape(finding.says)}"
        text += f"\n  → {escape(finding.advice)}" if finding.advice else ""
        console.print(text, highlight=False, soft_wrap=True)
    return good


def differences(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Every key that is not its default, with its value; secrets only as being set."""
    defaults = Settings().model_dump(mode="json")
    for section, keys in settings.model_dump(mode="json").items():
        for key, value in keys.items():
            if value != defaults[section][key]:
                name = f"{section}.{key}"
                yield name, "(set)" if name in SECRETS else value
