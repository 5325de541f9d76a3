"""``vramgate keys``: who may use the service, and how much of the card."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.table import Table

from common.errors import VramgateError
from frontend import keyfile, tables
from frontend.commands import options
from frontend.commands.options import Config
from frontend.tenants import Tenant

app = typer.Typer(help="Say who may use the service, and how much of the card.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Of the tenant: lower case, digits, . _ -")]
_TENANT = TypeAdapter(Tenant)
_SIZE = TypeAdapter(ByteSize)


@app.command("add")
def add_key(
    name: Name,
    share: Annotated[float | None, typer.Option(help="Weight beside other tenants while bytes are short.")] = None,
    priority: Annotated[int | None, typer.Option(help="Higher goes first, whatever the shares.")] = None,
    quota: Annotated[str | None, typer.Option(help="Bytes held on average, such as 2GiB.", metavar="BYTES")] = None,
    burst: Annotated[
        str | None, typer.Option(help="Byte-seconds that unused quota adds up to; 60 x quota.", metavar="BYTES")
    ] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds, for requests that name none.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="May use this model only; repeat for several.")] = None,
    operator: Annotated[bool | None, typer.Option(help="May see everybody's leases and statements.")] = None,
    config: Config = None,
) -> None:
    """Make a key and print it, this once; for a tenant that exists another one, and what else is said changes."""
    wishes = {
        "share": share,
        "priority": priority,
        "quota_bytes": _bytes("--quota", quota),
        "burst_byte_s": _bytes("--burst", burst),
        "deadline_s": deadline,
        "models": tuple(model) if model else None,
        "operator": operator,
    }
    key = keyfile.make_key()
    with keyfile.editing(_file(config)) as tenants:
        known = tenants.get(name)
        told: dict[str, object] = asdict(known) if known else {"name": name}
        told |= {field: value for field, value in wishes.items() if value is not None}
        told["keys"] = (*(known.keys if known else ()), keyfile.hash_of(key))
        tenants[name] = _tenant(told)
    options.console.print(key, highlight=False, soft_wrap=True, markup=False)


@app.command("list")
def list_keys(config: Config = None) -> None:
    """Print the tenants, and the beginning of each key's hash."""
    columns = ("tenant", "share", "priority", "quota", "burst", "deadline", "models", "operator", "keys")
    table = Table(*columns, box=None, header_style="dim")
    for one in keyfile.read(_file(config)):
        table.add_row(
            one.name,
            f"{one.share:g}",
            str(one.priority),
            "-" if one.quota_bytes is None else tables.size(one.quota_bytes),
            "-" if one.most_byte_s is None else f"{tables.size(one.most_byte_s)} s",
            "-" if one.deadline_s is None else f"{one.deadline_s:g} s",
            "all" if one.models is None else " ".join(one.models),
            "yes" if one.operator else "no",
            " ".join(hashed[: keyfile.ID_CHARS] for hashed in one.keys),
        )
    options.console.print(table)


@app.command("revoke")
def revoke_key(
    name: Name,
    key: Annotated[str | None, typer.Option(help="Only this one, as `list` prints it.", metavar="ID")] = None,
    config: Config = None,
) -> None:
    """Remove a tenant with all its keys, or one of them; a running service refuses it within a second."""
    with keyfile.editing(_file(config)) as tenants:
        if name not in tenants:
            raise VramgateError(f"there is no tenant {name!r}; see `vramgate keys list`")
        if key is None:
            del tenants[name]
        else:
            tenants[name] = keyfile.without(tenants[name], key)


def _file(config: Path | None) -> Path:
    file = options.load(config, None).tenants.file
    if file is None:
        raise VramgateError("no key file is set: tenants.file (VRAMGATE_TENANTS__FILE=keys.json)")
    return file.expanduser()


def _bytes(flag: str, text: str | None) -> int | None:
    try:
        return None if text is None else int(_SIZE.validate_python(text))
    except ValidationError:
        raise VramgateError(f"{flag}: {text!r} is no number of bytes, such as 512MiB") from None


def _tenant(told: dict[str, object]) -> Tenant:
    try:
        return _TENANT.validate_python(told)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise VramgateError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
