"""Spans: one for each request, with its wait and its work inside, and the model server's own beneath.

No span has a prompt, an image, or an exception's message.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import Span, SpanKind

from common.errors import SettingsError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Headers = Iterable[tuple[bytes, bytes]]
"""Of a request, as the web server gives them."""

_tracer: trace.Tracer | None = None
"""Set by :func:`export`; the spans of a process that exports none are not even made."""


@contextmanager
def span(name: str, *, kind: SpanKind = SpanKind.INTERNAL, of: Headers | None = None) -> Iterator[Span]:
    """A span for the time of the block; `of` are the headers of a caller whose trace it may continue."""
    if _tracer is None:
        yield trace.INVALID_SPAN
        return
    known = None if of is None else extract({key.decode("latin-1"): value.decode("latin-1") for key, value in of})
    with _tracer.start_as_current_span(
        name,
        context=known,
        kind=kind,
        record_exception=False,
        set_status_on_exception=False,
    ) as opened:
        yield opened


def headers() -> dict[str, str]:
    """What tells another server to continue the current trace; nothing where there is none."""
    carrier: dict[str, str] = {}
    if _tracer is not None:
        inject(carrier)
    return carrier


def export(url: str | None) -> Callable[[], None]:
    """From now on spans go to `url` by OTLP over HTTP; returns what sends the last ones. Raises SettingsError.

    Once in a process, before the first request.
    """
    if url is None:
        return lambda: None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise SettingsError("log.traces is set: pip install 'vramgate[tracing]'") from None
    provider = TracerProvider(resource=Resource.create({"service.name": "vramgate"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return begin(provider)


def begin(provider: "TracerProvider") -> Callable[[], None]:
    """From now on spans go to `provider`; returns what sends the last ones and ends that."""
    global _tracer
    _tracer = provider.get_tracer("vramgate")

    def end() -> None:
        global _tracer
        _tracer = None
        provider.shutdown()

    return end
