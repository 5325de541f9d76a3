"""The OpenAI API: ``/v1/completions``, ``/v1/chat/completions`` and ``/v1/models``."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from common.errors import ModelNotFound
from frontend.disconnect import EventStream, unless_disconnected
from frontend.forms import read_json
from frontend.openai_answers import Answer, Chat, Completion
from frontend.openai_forms import ChatForm, CompletionForm, OpenaiForm
from frontend.prompts import Names, read_chat, read_prompt, to_job
from frontend.runs import TextJob
from frontend.services import Services, deadline_s, services, services_of

COMPLETION = Names()

router = APIRouter()
Parts = Annotated[Services, Depends(services)]


async def complete(request: Request) -> Response:
    """The continuation of a prompt: a text or token ids."""
    parts = services_of(request)
    form = await read_json(request, CompletionForm)
    _require_model(parts, form.model)
    ids = await read_prompt(parts, form.single_prompt, COMPLETION)
    job = to_job(parts, ids, form, COMPLETION, max_tokens=form.max_tokens, logprobs=form.logprobs)
    return await _answer(request, parts, form, job, Completion)


async def chat(request: Request) -> Response:
    """The assistant's next turn in a chat."""
    parts = services_of(request)
    form = await read_json(request, ChatForm)
    _require_model(parts, form.model)
    names = Names(prompt="messages", max_tokens=form.limit_name, logprobs="top_logprobs")
    ids = await read_chat(parts, [message.for_template() for message in form.messages], names)
    job = to_job(parts, ids, form, names, max_tokens=form.limit, logprobs=form.alternatives)
    return await _answer(request, parts, form, job, Chat)


# Bare routes: what the framework does for the others is most of what a refusal costs.
router.add_route("/v1/completions", complete, methods=["POST"])
router.add_route("/v1/chat/completions", chat, methods=["POST"])


@router.get("/v1/models")
async def list_models(parts: Parts) -> dict[str, Any]:
    """The models that the text routes serve."""
    return {"object": "list", "data": [_describe(parts.settings.llama.served_name)]}


@router.get("/v1/models/{model:path}")
async def show_model(model: str, parts: Parts) -> dict[str, Any]:
    """One of them."""
    _require_model(parts, model)
    return _describe(model)


async def _answer(
    request: Request, parts: Services, form: OpenaiForm, job: TextJob, form_of_answer: type[Answer]
) -> Response:
    """Runs the job; whatever goes wrong before the engine has it has its own status, also of a stream."""
    timeout_s = deadline_s(request, parts.settings)

    async def whole() -> Response:
        run = await parts.teller.generate(job, timeout_s, whole=True)
        try:
            return JSONResponse(await form_of_answer(run, form.model, len(job.prompt_ids)).whole())
        finally:
            await run.aclose()

    if not form.stream:
        return await unless_disconnected(request, whole())
    run = await unless_disconnected(request, parts.teller.generate(job, timeout_s))
    answer = form_of_answer(run, form.model, len(job.prompt_ids))
    return EventStream(run, answer.events(include_usage=form.include_usage))


def _require_model(parts: Services, model: str) -> None:
    served = parts.settings.llama.served_name
    if model != served:
        raise ModelNotFound(f"no such model; the text routes serve {served!r}", param="model")


def _describe(model: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "vramgate"}
