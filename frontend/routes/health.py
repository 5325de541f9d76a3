"""Is it alive, is it ready, and what does it count?"""

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse

from common.errors import NotReady
from frontend.engines import MODELS
from frontend.metrics import CONTENT_TYPE
from frontend.refusals import headers_of
from frontend.services import Services, services

router = APIRouter()

Parts = Annotated[Services, Depends(services)]


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The event loop turns; says nothing of the engines."""
    return {"status": "alive"}


@router.get("/readyz")
async def readyz(parts: Parts) -> JSONResponse:
    """200 while everything takes work, else 503 with what does not, and why."""
    ready, reasons = parts.engines.ready()
    told = {
        "ready": ready,
        "reasons": reasons,
        "readings": {model: _readings(parts, model) for model in MODELS},
        "admission": parts.admission.closed or "open",
    }
    if ready:
        return JSONResponse(told)
    error = NotReady("; ".join(f"{name}: {reason}" for name, reason in reasons.items()), retry_after_s=1.0)
    return JSONResponse(error.to_body() | told, error.kind.http_status, headers_of(error))


@router.get("/metrics")
async def metrics(parts: Parts) -> Response:
    """Everything for Prometheus, looked at now."""
    parts.metrics.observe_ledger(parts.ledger)
    parts.metrics.observe_line(parts.admission.waiting)
    parts.metrics.observe_journal(parts.journal.dropped)
    for model in MODELS:
        try:
            status = parts.engines.status(model)
        except NotReady:
            parts.metrics.engine_lost(model)
        else:
            parts.metrics.observe_engine(status)
            parts.metrics.observe_drift(status.account, parts.ledger.booked(status.account) - status.used_bytes)
    return Response(parts.metrics.render(), media_type=CONTENT_TYPE)


def _readings(parts: Services, model: str) -> str:
    """Whether the engine can read its card; ``unknown`` also where the engine itself is."""
    try:
        return "unknown" if parts.engines.status(model).headroom_bytes is None else "known"
    except NotReady:
        return "unknown"
