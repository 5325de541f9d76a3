from collections.abc import Iterator

import pytest
from aiohttp import web
from fastapi import FastAPI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.types import Receive, Scope, Send

from frontend import record, tracing
from frontend.envelope import Envelope
from tests.unit.fake_triton import client, event, events
from tests.unit.web import run

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    end = tracing.begin(provider)
    yield exporter
    end()


def test_a_request_continues_its_callers_trace_and_the_model_server_continues_it(spans: InMemorySpanExporter) -> None:
    seen: dict[str, str] = {}

    async def generate(request: web.Request) -> web.StreamResponse:
        seen.update(request.headers)
        seen["id"] = (await request.json())["id"]
        return await events(request, event(text_output="a", statement="{}"))

    async def test() -> None:
        async with client(("POST", "/v2/models/llama/generate_stream", generate)) as triton:

            async def app(scope: Scope, receive: Receive, send: Send) -> None:
                with tracing.span("wait for bytes"):
                    pass
                async for _ in triton.generate_stream("llama", {"text_input": "secret"}):
                    pass
                record.current().route = "/v1/completions"

            headers = [(b"traceparent", PARENT.encode()), (b"x-request-id", b"id-1")]
            scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "app": FastAPI()}
            await Envelope(app)(scope, _nothing, _nowhere)

    run(test)
    wait, whole = spans.get_finished_spans()
    assert whole.name == "POST /v1/completions"
    assert whole.context is not None
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert wait.name == "wait for bytes"
    assert wait.parent is not None
    assert wait.parent.span_id == whole.context.span_id
    assert seen["traceparent"].split("-")[1] == TRACE
    assert seen["id"] == "id-1"
    assert whole.attributes is not None
    assert whole.attributes["vramgate.request"] == "id-1"
    assert "secret" not in str([span.to_json() for span in spans.get_finished_spans()])


def test_a_span_keeps_nothing_of_what_was_raised_in_it(spans: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="secret"), tracing.span("x"):
        raise ValueError("secret")
    (span,) = spans.get_finished_spans()
    assert "secret" not in span.to_json()


def test_without_an_exporter_nothing_is_told_to_anybody() -> None:
    with tracing.span("x", of=[(b"traceparent", PARENT.encode())]) as span:
        assert not span.is_recording()
        assert tracing.headers() == {}


def test_probes_leave_no_spans(spans: InMemorySpanExporter) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        """Answers nothing."""

    async def test() -> None:
        scope = {"type": "http", "method": "GET", "path": "/readyz", "headers": [], "app": FastAPI()}
        await Envelope(app)(scope, _nothing, _nowhere)

    run(test)
    assert spans.get_finished_spans() == ()


async def _nothing() -> dict[str, object]:
    return {"type": "http.request", "body": b""}


async def _nowhere(message: object) -> None:
    """Nobody reads the answer."""
