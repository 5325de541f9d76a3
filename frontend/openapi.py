"""The HTTP contract as OpenAPI 3.1: the bodies from the forms that read them, the errors from their one table."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema

from common.errors import REQUEST_ERRORS
from frontend.forms import Form
from frontend.openai_forms import ChatForm, CompletionForm
from frontend.quote import ImageQuote, TextQuote
from frontend.routes.predict import PredictForm
from frontend.v2_text import TextForm

FORMS: tuple[type[Form], ...] = (CompletionForm, ChatForm, PredictForm, TextQuote, ImageQuote, TextForm)
REF = "#/components/schemas/"
JSON = "application/json"
EVENTS = "text/event-stream"
OBJECT = {"type": "object"}
STATUSES = sorted({error.kind.http_status for error in REQUEST_ERRORS} - {499} | {408})
"""499 is for logs alone: its client has left. 408 is what ``/predict`` says for 504."""
TIMEOUT = {
    "name": "X-Request-Timeout",
    "in": "header",
    "description": "Seconds this request may take, waiting included.",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}
REQUEST_ID = {
    "name": "X-Request-Id",
    "in": "header",
    "description": "Up to 64 of A-Z a-z 0-9 . _ : -; comes back and stands in the logs; made where it is missing.",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,64}$"},
}
FORMATS = ("png", "json", "polygons", "overlay")


@dataclass(frozen=True)
class Route:
    """One operation."""

    method: str
    path: str
    says: str
    body: Mapping[str, Any] | None = None
    """Media type -> schema."""
    answers: tuple[str, ...] = (JSON,)
    """Media types of a good answer; none for one without a body."""
    parameters: tuple[Mapping[str, Any], ...] = ()
    open: bool = False
    """Whether it is answered without a key."""


def _form(*forms: type[Form]) -> dict[str, Any]:
    refs = [{"$ref": REF + form.__name__} for form in forms]
    return {JSON: refs[0] if len(refs) == 1 else {"oneOf": refs}}


def _query(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "enum": ["llama", "unet"]}}
NAME = MODEL | {"schema": {"type": "string"}}
UPLOAD = {
    "multipart/form-data": {
        "type": "object",
        "required": ["image"],
        "properties": {
            "image": {"type": "string", "format": "binary"},
            "format": {"type": "string", "enum": list(FORMATS)},
            "threshold": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "tolerance": {"type": "number", "minimum": 0},
        },
    }
}
TENSORS = {JSON: OBJECT, "application/octet-stream": {"type": "string", "format": "binary"}}

ROUTES = (
    Route("post", "/v1/chat/completions", "The assistant's next turn in a chat.", _form(ChatForm), (JSON, EVENTS)),
    Route("post", "/v1/completions", "The continuation of a prompt.", _form(CompletionForm), (JSON, EVENTS)),
    Route("get", "/v1/models", "The models that the text routes serve."),
    Route("get", "/v1/models/{model}", "One of them.", parameters=(NAME,)),
    Route("post", "/v1/segment", "The mask of an image.", UPLOAD, ("image/png", JSON)),
    Route("post", "/predict", "The compatibility route: 408 where others say 504.", _form(PredictForm)),
    Route("post", "/v1/quote", "The price of a request that is not run.", _form(TextQuote, ImageQuote)),
    Route("get", "/v1/ledger", "Accounts, leases, engines; for operators."),
    Route(
        "get",
        "/v1/statements",
        "The newest finished leases; a tenant's own, an operator sees all.",
        parameters=(_query("limit", type="integer", minimum=1, maximum=1000, default=100),),
    ),
    Route("get", "/healthz", "The process answers.", open=True),
    Route("get", "/readyz", "Everything takes work, or what does not and why.", open=True),
    Route("get", "/metrics", "For Prometheus.", answers=("text/plain",)),
    Route("get", "/v2", "KServe v2: the server."),
    Route("get", "/v2/health/live", "KServe v2: the process answers.", answers=(), open=True),
    Route("get", "/v2/health/ready", "KServe v2: everything takes work.", answers=(), open=True),
    Route("get", "/v2/models/{model}", "KServe v2: inputs and outputs.", parameters=(MODEL,)),
    Route("get", "/v2/models/{model}/ready", "KServe v2: takes work.", answers=(), parameters=(MODEL,)),
    Route("get", "/v2/models/{model}/config", "KServe v2: configuration.", parameters=(MODEL,)),
    Route(
        "post",
        "/v2/models/{model}/infer",
        "KServe v2: tensors in, tensors out.",
        TENSORS,
        (JSON, "application/octet-stream"),
        (MODEL,),
    ),
    Route("post", "/v2/models/{model}/generate", "Text, in one piece.", _form(TextForm), (JSON,), (MODEL,)),
    Route("post", "/v2/models/{model}/generate_stream", "Text, as events.", _form(TextForm), (EVENTS,), (MODEL,)),
)


def document() -> dict[str, Any]:
    """The whole contract."""
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "vramgate", "version": version("vramgate"), "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "http://127.0.0.1:8080"}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "responses": {name: _refusal(name) for name in ("Error", "V2Error")},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operation(route: Route) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Done."}
    if route.answers:
        good["content"] = {media: {"schema": _answer(media)} for media in route.answers}
    operation: dict[str, Any] = {
        "summary": route.says,
        "operationId": f"{route.method} {route.path}",
        "parameters": [*route.parameters, REQUEST_ID, *([TIMEOUT] if route.body else [])],
        "responses": {"200": good},
    }
    error = {"$ref": f"#/components/responses/{_error_of(route)}"}
    operation["responses"] |= {str(status): error for status in STATUSES}
    if route.body:
        content = {media: {"schema": schema} for media, schema in route.body.items()}
        operation["requestBody"] = {"required": True, "content": content}
    if route.open:
        operation["security"] = [{}]
    return operation


def _answer(media: str) -> dict[str, Any]:
    return {JSON: OBJECT, EVENTS: {}}.get(media, {"type": "string"})


def _refusal(schema: str) -> dict[str, Any]:
    return {"description": "Refused.", "content": {JSON: {"schema": {"$ref": REF + schema}}}}


def _error_of(route: Route) -> str:
    return "V2Error" if route.path.startswith("/v2") else "Error"


def _schemas() -> dict[str, Any]:
    _, told = models_json_schema([(form, "validation") for form in FORMS], ref_template=REF + "{model}")
    parts = {
        "message": {"type": "string"},
        "type": {"type": "string", "enum": sorted({error.kind.type for error in REQUEST_ERRORS})},
        "param": {"type": ["string", "null"]},
        "code": {"type": "string", "enum": sorted({error.kind.code for error in REQUEST_ERRORS})},
    }
    error = {"type": "object", "required": list(parts), "properties": parts}
    schemas: dict[str, Any] = told["$defs"]
    for form in (ChatForm, CompletionForm):
        schemas[form.__name__]["properties"]["model"] |= {"enum": ["llama"], "description": "llama.served_name"}
    return schemas | {
        "Error": {"type": "object", "required": ["error"], "properties": {"error": error}},
        "V2Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}},
    }
