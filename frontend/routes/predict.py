"""``POST /predict``: the compatibility route, with field names and statuses of its own.

A refusal for lack of bytes is 429, a deadline that has passed is 408 (504 on every other route), a failure is 500.
Everything else has the status it has elsewhere: 400, 413 never fits, 503 not ready.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from common.errors import DeadlineExceeded, InternalFault, UpstreamBroken
from frontend.disconnect import unless_disconnected
from frontend.forms import Form, read_json
from frontend.prompts import Names, read_prompt, to_job
from frontend.runs import TextJob, gather
from frontend.sampling_form import INT64, SamplingForm
from frontend.services import Services, deadline_s, services

NAMES = Names(max_tokens="max_new_tokens", n="batch_size")

router = APIRouter()


class PredictForm(Form):
    """What to continue, and how."""

    prompt: str
    max_new_tokens: int | None = Field(None, ge=1, lt=INT64)
    temperature: float | None = Field(None, ge=0, le=2)
    """0 is greedy."""
    top_p: float | None = Field(None, gt=0, le=1)
    batch_size: int | None = Field(None, ge=1)
    """How many answers."""

    def sampling(self) -> SamplingForm:
        """The same in the words of the other routes."""
        return SamplingForm(temperature=self.temperature, top_p=self.top_p, n=self.batch_size)


class TimedOut(DeadlineExceeded):
    """The deadline has passed, in the words of this route."""

    kind = replace(DeadlineExceeded.kind, http_status=408)


@router.post("/predict")
async def predict(request: Request, parts: Annotated[Services, Depends(services)]) -> dict[str, Any]:
    """The continuation of a text: a string, or a list of strings where ``batch_size`` is more than 1."""
    form = await read_json(request, PredictForm)
    timeout_s = deadline_s(request, parts.settings)
    ids = await read_prompt(parts, form.prompt, NAMES)
    job = to_job(parts, ids, form.sampling(), NAMES, max_tokens=form.max_new_tokens)
    with _statuses():
        return await unless_disconnected(request, _answer(parts, job, timeout_s))


async def _answer(parts: Services, job: TextJob, timeout_s: float) -> dict[str, Any]:
    began_s = parts.clock()
    run = await parts.teller.generate(job, timeout_s, whole=True)
    try:
        texts = [chunk.text for chunk in await gather(run)]
    finally:
        await run.aclose()
    latency_ms = round((parts.clock() - began_s) * 1000, 3)
    rung = run.statement.rung
    fallback = {} if rung == "none" else {"fallback": rung}
    return {"result": texts if job.n > 1 else texts[0], "latency_ms": latency_ms} | fallback


@contextmanager
def _statuses() -> Iterator[None]:
    """Raises the errors of a run with the statuses of this route."""
    try:
        yield
    except DeadlineExceeded as error:
        raise TimedOut(error.message) from None
    except UpstreamBroken as error:
        raise InternalFault(error.message) from None
