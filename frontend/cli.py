"""``vramgate``: start the service, ask what a request costs, look at the ledger, find what is wrong."""

import sys

import typer

from common.errors import VramgateError
from frontend.commands import bank, calibrate, check, keys, openapi, plan, profile, service, snapshots, top

app = typer.Typer(
    help="GPU memory as a bank account, for Llama and UNet behind Triton.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS = (
    service.up,
    check.check,
    service.doctor,
    bank.quote,
    plan.plan,
    bank.ledger,
    top.top,
    profile.profile,
    calibrate.calibrate,
    openapi.openapi,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(keys.app, name="keys")
app.add_typer(snapshots.app, name="snapshots")
app.command()(service.version)


def main() -> None:
    """The console script: an error of ours is one clear line and exit status 2."""
    try:
        app()
    except VramgateError as error:
        print(f"vramgate: {error}", file=sys.stderr)
        sys.exit(2)
