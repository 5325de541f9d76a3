"""Services whose language model says what a test tells it; the routes, the app and the run are real."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import httpx

from common.errors import RequestError
from common.sections import Llama, Server
from common.settings import Settings
from common.wire import LlamaLimits, Statement
from estimator.price import Price
from frontend.app import create_app
from frontend.metrics import Metrics
from frontend.runs import TextChunk, TextJob, TextRun
from frontend.services import Services

BOS = 1
LIMITS = LlamaLimits(
    context_tokens=64, vocab_tokens=256, page_tokens=4, page_bytes=100, pages=99, tokenizer_dir="/nowhere"
)
SETTINGS = Settings(
    server=Server(request_timeout_s=30.0, max_request_timeout_s=60.0),
    llama=Llama(served_name="tiny", default_max_tokens=16, max_n=4, max_logprobs=3),
)
STATEMENT = Statement(
    lease="lease-1", model="llama", quoted_bytes=700, held_bytes=600, process_peak_bytes=50, output_tokens=2
)
VRAM = {"quoted_bytes": 700, "held_bytes": 600, "peak_bytes": 50, "rung": "none"}
HELLO = (TextChunk(0, "Hel", (72,)), TextChunk(0, "lo", (73,), finish_reason="stop"))


class ByteTokenizer:
    """One token per UTF-8 byte, BOS in front; a chat is ``<role>content`` for every turn."""

    longest_token_chars = 4

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [BOS] * special + list(text.encode())

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)


class Tokenizers:
    async def get(self) -> ByteTokenizer:
        return ByteTokenizer()


class Engines:
    def llama_limits(self) -> LlamaLimits:
        return LIMITS

    def stop(self, reason: str) -> None:
        pass


class Run(TextRun):
    """Counts how often it was closed."""

    def __init__(self) -> None:
        super().__init__(Price())
        self.lease_id = "lease-1"
        self.closed = 0

    async def aclose(self) -> None:
        self.closed += 1


class Teller:
    """Answers every job with `chunks` and then the `error`, the `statement`, or nothing for ever."""

    def __init__(self) -> None:
        self.refusal: RequestError | None = None
        """Raised in place of a run."""
        self.chunks: Sequence[TextChunk] = HELLO
        self.statement: Statement | None = STATEMENT
        self.error: RequestError | None = None
        self.jobs: list[TextJob] = []
        self.timeouts_s: list[float] = []
        self.runs: list[Run] = []

    async def generate(self, job: TextJob, timeout_s: float, *, whole: bool = False) -> Run:
        if self.refusal is not None:
            raise self.refusal
        self.jobs.append(job)
        self.timeouts_s.append(timeout_s)
        run = Run()
        self.runs.append(run)
        run.start()
        for chunk in self.chunks:
            run.put(chunk)
        if self.error is not None:
            run.fail(self.error)
        elif self.statement is not None:
            run.finish(self.statement)
        return run


class Parts:
    """The fakes, and an HTTP client of the real app over them."""

    def __init__(self) -> None:
        self.teller = Teller()
        self.now_s = 0.0
        others: dict[str, Any] = dict.fromkeys(("ledger", "admission", "journal", "triton"))
        services = Services(
            settings=SETTINGS,
            clock=self._clock,
            metrics=Metrics(),
            engines=cast(Any, Engines()),
            teller=cast(Any, self.teller),
            tokenizers=cast(Any, Tokenizers()),
            **others,
        )
        self.app = create_app(SETTINGS, services)

    @property
    def job(self) -> TextJob:
        """The only job."""
        (job,) = self.teller.jobs
        return job

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request to the app."""
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://vramgate") as client:
            return await client.request(method, path, **options)

    def _clock(self) -> float:
        """A quarter of a second later at every look."""
        self.now_s += 0.25
        return self.now_s


def check_error(answer: httpx.Response, status: int, code: str, param: str | None = None) -> str:
    """The message of an error in the contract's form."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() >= {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    return str(error["message"])
