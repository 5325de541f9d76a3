"""The bank's own routes: what a request would cost, what is held now, and what was held before."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from common.errors import NotReady
from common.wire import EngineStatus
from estimator.price import Price
from frontend import record
from frontend.engines import MODELS
from frontend.forms import read_json
from frontend.journal import Entry
from frontend.ledger import Lease, Ledger
from frontend.prompts import Names, read_chat, read_prompt, to_job
from frontend.quote import AnyQuote, ImageQuote, TextQuote
from frontend.runs import TextJob
from frontend.services import Services, services

router = APIRouter()

MAX_STATEMENTS = 1000

Parts = Annotated[Services, Depends(services)]


@router.post("/v1/quote")
async def quote(request: Request, parts: Parts) -> dict[str, Any]:
    """The price of a request that is not run: every line with its reason, and what would become of it now."""
    asked = await read_json(request, (await read_json(request, AnyQuote)).form())
    record.current().tenant.require(asked.model)
    if isinstance(asked, ImageQuote):
        price = parts.teller.prices.widened(asked.model, asked.price(parts.engines.unet_limits()))
        return _quote(parts, asked.model, price, asked.height * asked.width)
    job = await _job(parts, asked)
    tokens = {"prompt_tokens": len(job.prompt_ids), "max_tokens": job.max_tokens, "n": job.n}
    return _quote(parts, asked.model, parts.teller.price_text(job), job.n * job.max_tokens) | tokens


@router.get("/v1/ledger")
async def ledger(parts: Parts) -> dict[str, Any]:
    """Accounts, leases, and what the engines say of both; everybody's, so for operators."""
    record.current().tenant.require_operator("the ledger")
    statuses = {model: _status(parts, model) for model in MODELS}
    known = [status for status in statuses.values() if isinstance(status, EngineStatus)]
    held = {lease.id: lease.held_bytes for status in known for lease in status.leases}
    return {
        "accounts": _accounts(parts.ledger, {status.account: status for status in known}),
        "leases": [_lease(lease, parts.clock(), held.get(lease.id)) for lease in parts.ledger.leases()],
        "waiting": parts.admission.waiting,
        "closed": parts.admission.closed,
        "overrun_bytes": parts.ledger.overrun_bytes,
        "engines": [_engine(model, status) for model, status in statuses.items()],
    }


@router.get("/v1/statements")
async def statements(parts: Parts, limit: Annotated[int, Query(ge=1, le=MAX_STATEMENTS)] = 100) -> dict[str, Any]:
    """The newest finished leases, newest first: everybody's for an operator, else the tenant's own."""
    tenant = record.current().tenant
    entries = await asyncio.to_thread(parts.journal.recent, limit, None if tenant.operator else tenant.name)
    return {"statements": [_entry(entry) for entry in entries], "dropped": parts.journal.dropped}


async def _job(parts: Services, asked: TextQuote) -> TextJob:
    """What would be run; refused as it would be there."""
    if asked.messages is not None:
        names = Names(prompt="messages")
        ids = await read_chat(parts, [message.for_template() for message in asked.messages], names)
    elif asked.prompt is not None:
        names = Names()
        ids = await read_prompt(parts, asked.prompt, names)
    else:
        names = Names(prompt="prompt_tokens")
        ids = asked.stand_ins(parts.engines.llama_limits())
    return to_job(parts, ids, asked, names, max_tokens=asked.max_tokens)


def _quote(parts: Services, model: str, price: Price, units: int) -> dict[str, Any]:
    """`units`: output tokens or pixels that it may do at the most."""
    expected_s, caller = parts.teller.expected_s(model, units), record.current().caller
    decision = parts.admission.ask(price, expected_s=expected_s, caller=caller)
    return {
        "model": model,
        "lines": [asdict(line) for line in price.lines],
        "accounts": [
            {
                "account": account,
                "price_bytes": price_bytes,
                "available_bytes": parts.ledger.available(account),
                "capacity_bytes": parts.ledger.capacity(account),
            }
            for account, price_bytes in price.by_account().items()
        ],
        "total_bytes": price.total_bytes,
        "drift": asdict(parts.teller.prices.drift(model)),
        "verdict": decision.verdict,
        "decided_by": decision.account or None,
        "retry_after_s": decision.retry_after_s,
        "closed": parts.admission.closed,
    }


def _status(parts: Services, model: str) -> EngineStatus | str:
    """What the engine last said, or why it has not."""
    try:
        return parts.engines.status(model)
    except NotReady as error:
        return error.message


def _accounts(book: Ledger, statuses: Mapping[str, EngineStatus]) -> list[dict[str, Any]]:
    """Drift is what stands on the books minus what the engine says it uses; null where no engine speaks of it."""
    rows = []
    for view in book.accounts():
        status = statuses.get(view.name)
        used_bytes = status.used_bytes if status else None
        drift_bytes = book.booked(view.name) - status.used_bytes if status else None
        rows.append(asdict(view) | {"engine_used_bytes": used_bytes, "drift_bytes": drift_bytes})
    return rows


def _lease(lease: Lease, now_s: float, engine_held_bytes: int | None) -> dict[str, Any]:
    return {
        "id": lease.id,
        "model": lease.model,
        "state": lease.state,
        "boot_id": lease.boot_id,
        "lines": dict(lease.lines),
        "total_bytes": lease.price.total_bytes,
        "age_s": round(now_s - lease.created_s, 3),
        "expected_left_s": round(max(0.0, lease.expected_end_s - now_s), 3),
        "engine_held_bytes": engine_held_bytes,
    }


def _engine(model: str, status: EngineStatus | str) -> dict[str, Any]:
    if isinstance(status, str):
        return {"model": model, "ready": False, "reason": status}
    told = asdict(status)
    limits = told.pop("llama") or told.pop("unet")
    told.pop("unet", None)
    return told | {"standing_bytes": sum(status.standing.values()), "limits": limits}


def _entry(entry: Entry) -> dict[str, Any]:
    return asdict(entry) | {"statement": json.loads(entry.statement) if entry.statement else None}
