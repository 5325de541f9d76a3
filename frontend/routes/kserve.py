"""``/v2/**``: the KServe v2 protocol with admission in front; a tritonclient script changes nothing but its URL.

What is served is listed here, route by route. Everything else below ``/v2`` is the model server's management.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from starlette.routing import Match

from common.errors import Forbidden, InvalidRequest, MethodNotAllowed, ModelNotFound, NotReady, RequestError
from frontend import v2, v2_image, v2_text
from frontend.disconnect import EventStream, unless_disconnected
from frontend.engines import MODELS
from frontend.guests import Guests
from frontend.held import Held
from frontend.offload import offload
from frontend.prompts import Names, read_prompt, to_job
from frontend.runs import TextJob, TextRun
from frontend.services import Services, deadline_s, services, services_of
from frontend.tensors import HEADER_LENGTH
from frontend.triton import object_of
from frontend.v2_text import RESERVED, Sequences, TextForm

VERSION = "1"
"""Of every model."""
UNSERVED_EXTENSIONS = (
    "sequence",
    "schedule_policy",
    "statistics",
    "model_repository",
    "system_shared_memory",
    "cuda_shared_memory",
    "trace",
    "logging",
)
"""Beginnings of extensions that the model server has and this door does not."""
PARAMETERS = frozenset({"binary_data_output", "timeout"})
"""Of an inference request as a whole."""

router = APIRouter(prefix="/v2", tags=["KServe v2"])
Parts = Annotated[Services, Depends(services)]


async def priced_model(request: Request, parts: Parts) -> str:
    """The model in the path. Raises ModelNotFound, and Forbidden for one that Triton has and nobody can price."""
    model, version = request.path_params["model"], request.path_params.get("version", VERSION)
    if model in MODELS and version == VERSION:
        return str(model)
    if parts.guests is not None and model in parts.guests and version == VERSION:
        return str(model)
    if model in MODELS:
        raise ModelNotFound(f"{model} has no version {version[:80]!r}, only {VERSION!r}")
    reply = await parts.triton.look_up(f"/v2/models/{quote(model, safe='')}")
    if reply.status == 200:
        raise Forbidden(f"model {model[:80]!r} has no price, so it is not served")
    raise ModelNotFound(f"there is no model {model[:80]!r}")


Model = Annotated[str, Depends(priced_model)]


@router.get("")
async def server_metadata(parts: Parts) -> JSONResponse:
    """Name and version of the model server, and those of its extensions that are served here."""
    about = object_of(await parts.triton.look_up("/v2"))
    extensions = [name for name in about.get("extensions", []) if not str(name).startswith(UNSERVED_EXTENSIONS)]
    return JSONResponse(about | {"extensions": extensions})


@router.get("/health/live")
async def live() -> Response:
    """This process answers."""
    return Response()


@router.get("/health/ready")
async def ready(parts: Parts) -> Response:
    """Every engine takes work; 503 with the reasons otherwise."""
    is_ready, reasons = parts.engines.ready()
    if not is_ready:
        raise NotReady("; ".join(f"{name}: {reason}" for name, reason in reasons.items()), retry_after_s=1.0)
    return Response()


@router.get("/models/{model}/ready")
@router.get("/models/{model}/versions/{version}/ready")
async def model_ready(model: Model, parts: Parts) -> Response:
    """This engine takes work; a guest says so itself."""
    if parts.guests is not None and model in parts.guests:
        object_of(await parts.triton.look_up(f"/v2/models/{model}/ready"))
    else:
        parts.engines.require(model)
    return Response()


@router.get("/models/{model}")
@router.get("/models/{model}/versions/{version}")
async def model_metadata(model: Model, parts: Parts) -> JSONResponse:
    """Inputs and outputs, those between us and the engines left out."""
    about = object_of(await parts.triton.look_up(f"/v2/models/{model}"))
    return JSONResponse(_for_clients(about, "inputs", "outputs"))


@router.get("/models/{model}/config")
@router.get("/models/{model}/versions/{version}/config")
async def model_config(model: Model, parts: Parts) -> JSONResponse:
    """The model's configuration, with the same tensors left out."""
    about = object_of(await parts.triton.look_up(f"/v2/models/{model}/config"))
    return JSONResponse(_for_clients(about, "input", "output"))


async def infer(request: Request) -> Response:
    """Tensors in, tensors out; the language model's stream is gathered. A bare route: the shortest way there is."""
    parts = services_of(request)
    model = await priced_model(request, parts)
    body = await _body(request, parts)
    message = await offload(len(body), v2.parse, body, request.headers.get(HEADER_LENGTH))
    if parts.guests is not None and model in parts.guests:
        return await _guest(request, parts.guests, model, body, deadline_s(request, parts.settings))
    timeout_s = _infer_deadline_s(request, parts, message)
    work = _segment(parts, message, timeout_s) if model == "unet" else _answer(parts, message, timeout_s)
    answer = await unless_disconnected(request, work)
    return Response(answer.body, headers=dict(answer.headers))


INFER_PATHS = ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer")
for path in INFER_PATHS:
    router.add_route(path, infer, methods=["POST"])


@router.post("/models/{model}/generate")
@router.post("/models/{model}/versions/{version}/generate")
async def generate(model: Model, request: Request, parts: Parts) -> JSONResponse:
    """Text as JSON, in one piece."""
    form, request_id = await _text_form(model, request, parts)
    timeout_s = deadline_s(request, parts.settings)
    answer = await unless_disconnected(request, _complete(parts, form, timeout_s))
    return JSONResponse(v2_text.to_generated(answer, request_id))


@router.post("/models/{model}/generate_stream")
@router.post("/models/{model}/versions/{version}/generate_stream")
async def generate_stream(model: Model, request: Request, parts: Parts) -> EventStream:
    """Text as server-sent events; ``"stream": false`` makes it a single one."""
    form, request_id = await _text_form(model, request, parts)
    job = await _job(parts, form)
    whole, timeout_s = form.stream is False, deadline_s(request, parts.settings)
    run = await unless_disconnected(request, parts.teller.generate(job, timeout_s, whole=whole))
    return EventStream(run, _events(run, request_id, whole=whole))


@router.api_route(
    "/{rest:path}",
    methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"],
    include_in_schema=False,
)
async def management(request: Request) -> Response:
    """Everything else."""
    served = [route for route in router.routes if route.matches(request.scope)[0] is Match.PARTIAL]
    if served:
        raise MethodNotAllowed(f"this route does not answer {request.method}")
    raise Forbidden(
        "the model server's management is not for clients; below /v2 there are health, metadata, config, infer, "
        "generate and generate_stream"
    )


async def _guest(request: Request, guests: Guests, model: str, body: bytes, timeout_s: float) -> Response:
    """A guest's answer as it gave it; its request has been looked at for its form alone."""
    known = {name: request.headers[name] for name in ("content-type", HEADER_LENGTH.lower()) if name in request.headers}
    reply = await unless_disconnected(request, guests.infer(model, known, body, timeout_s))
    if reply.status != 200:
        object_of(reply)
    kept = {name: value for name, value in reply.headers.items() if name.lower() in known}
    return Response(reply.body, headers=kept)


async def _segment(parts: Services, message: v2.InferRequest, timeout_s: float) -> v2.WireBody:
    """The segmentation model's answer as it gave it, but for the statement."""
    job = await offload(message.size_bytes, v2_image.read_job, message, parts.engines.unet_limits())

    async def send(held: Held) -> v2.WireBody:
        sent = await offload(message.size_bytes, v2_image.add_lease, message, held.wire.to_json())
        reply = await parts.triton.forward("POST", "/v2/models/unet/infer", sent.headers, sent.body)
        if reply.status != 200:
            object_of(reply)
        held.statement, answer = await offload(len(reply.body), v2_image.take_statement, reply.headers, reply.body)
        return answer

    async with parts.teller.sending_image(job, timeout_s, send) as answer:
        return answer


async def _answer(parts: Services, message: v2.InferRequest, timeout_s: float) -> v2.WireBody:
    """The language model's answer as tensors."""
    form = await offload(message.size_bytes, v2_text.read_infer, message)
    return v2_text.to_inferred(await _complete(parts, form, timeout_s), message)


async def _complete(parts: Services, form: TextForm, timeout_s: float) -> Sequences:
    if form.stream:
        raise InvalidRequest("stream: this route answers in one piece, generate_stream streams", param="stream")
    run = await parts.teller.generate(await _job(parts, form), timeout_s, whole=True)
    try:
        return await v2_text.gather(run)
    finally:
        await run.aclose()


async def _job(parts: Services, form: TextForm) -> TextJob:
    names = Names(prompt="text_input" if form.input_ids is None else "input_ids")
    prompt_ids = await read_prompt(parts, form.prompt, names)
    return to_job(parts, prompt_ids, form, names, max_tokens=form.max_tokens, logprobs=form.logprobs)


async def _events(run: TextRun, request_id: str, *, whole: bool) -> AsyncIterator[str]:
    """Triton's form of a stream: no marker at its end; an error is an event of its own, and the last."""
    try:
        if whole:
            yield _event(v2_text.to_generated(await v2_text.gather(run), request_id))
            return
        async for chunk in run:
            yield _event(v2_text.to_generated(Sequences((chunk,)), request_id))
    except RequestError as error:
        yield _event(v2.error_body(error))


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"


async def _text_form(model: str, request: Request, parts: Services) -> tuple[TextForm, str]:
    if parts.guests is not None and model in parts.guests:
        raise InvalidRequest(f"{model} takes tensors: infer")
    if model != "llama":
        raise InvalidRequest(f"{model} takes images: POST /v1/segment, or infer with the image as a binary tensor")
    body = await _body(request, parts)
    v2.refuse_long_json(len(body))
    return v2_text.read_generate(body)


async def _body(request: Request, parts: Services) -> bytes:
    encoding = request.headers.get("content-encoding")
    body = await request.body()
    if encoding is None:
        return body
    return await asyncio.to_thread(v2.decompress, body, encoding, parts.settings.server.max_body_bytes)


def _infer_deadline_s(request: Request, parts: Services, message: v2.InferRequest) -> float:
    """The client's ``timeout`` is in microseconds."""
    unknown = sorted(message.header.parameters.keys() - PARAMETERS)
    if unknown:
        raise InvalidRequest(f"parameter {unknown[0][:80]!r} is not known to this model", param="parameters")
    timeout_us = message.header.parameters.get("timeout")
    if timeout_us is None:
        return deadline_s(request, parts.settings)
    if type(timeout_us) is not int:
        raise InvalidRequest("timeout must be a whole number of microseconds", param="timeout")
    return deadline_s(request, parts.settings, timeout_us / 1e6)


def _for_clients(about: dict[str, Any], *keys: str) -> dict[str, Any]:
    lists = {key: [tensor for tensor in about.get(key, []) if tensor.get("name") not in RESERVED] for key in keys}
    return about | lists
