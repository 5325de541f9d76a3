"""Services whose teller, engines and model server do what a test tells them; the routes and the app are real."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import httpx
import numpy as np
from numpy.typing import NDArray

from common.errors import NotReady, RequestError
from common.settings import Settings
from common.wire import UNET_CANVAS, Lease, LlamaLimits, Statement, UnetLimits
from estimator import llama, unet
from estimator.price import Price
from frontend.app import create_app
from frontend.metrics import Metrics
from frontend.runs import ImageJob, ImageResult, TextChunk, TextJob, vram
from frontend.services import Services
from frontend.teller import Held
from frontend.tensors import HEADER_LENGTH
from frontend.triton import Reply

TILES = UnetLimits(
    classes=1,
    class_names=("nucleus",),
    tile_pixels=32,
    overlap_pixels=8,
    canvas_bytes=10**6,
    canvas_itemsize=2,
    max_pixels=10**6,
    default_threshold=0.5,
)
PAGES = LlamaLimits(
    context_tokens=64, vocab_tokens=300, page_tokens=4, page_bytes=100, pages=10, tokenizer_dir="/nowhere"
)
STATEMENT = Statement(
    lease="lease-1", model="unet", quoted_bytes=11, held_bytes=10, process_peak_bytes=7, rung="none", pixels=6
)

Answer = TypeVar("Answer")


def mask_of(height: int, width: int) -> NDArray[np.uint8]:
    """The mask of every image of this size: a chessboard, white at the upper left."""
    rows, columns = np.indices((height, width))
    return np.asarray((rows + columns + 1) % 2, np.uint8)


class FakeEngines:
    """Ready, until `trouble` says otherwise."""

    def __init__(self) -> None:
        self.tiles = TILES
        self.trouble: dict[str, str] = {}

    def unet_limits(self) -> UnetLimits:
        self.require("unet")
        return self.tiles

    def llama_limits(self) -> LlamaLimits:
        self.require("llama")
        return PAGES

    def ready(self) -> tuple[bool, dict[str, str]]:
        return not self.trouble, self.trouble

    def require(self, model: str) -> None:
        if model in self.trouble:
            raise NotReady(f"{model} is not ready: {self.trouble[model]}", retry_after_s=1.0)


class FakeRun:
    """A text run of these chunks, then `error`."""

    def __init__(self, chunks: list[TextChunk], error: RequestError | None) -> None:
        self._chunks = iter(chunks)
        self._error = error
        self.closed = 0

    def __aiter__(self) -> AsyncIterator[TextChunk]:
        return self

    async def __anext__(self) -> TextChunk:
        for chunk in self._chunks:
            return chunk
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed += 1


class FakeTeller:
    """Prices as the real one; what it was asked for and how it ended is in its lists."""

    def __init__(self, engines: FakeEngines) -> None:
        self._engines = engines
        self.refusal: RequestError | None = None
        """Raised in place of a lease."""
        self.jobs: list[TextJob | ImageJob] = []
        self.timeouts_s: list[float] = []
        self.held: list[Held] = []
        self.ended: list[str] = []
        """``settled``, ``abandoned`` or the name of an exception, for every lease."""
        self.chunks: list[TextChunk] = []
        self.error: RequestError | None = None
        """Ends a text run early."""
        self.runs: list[FakeRun] = []
        self.mask: NDArray[np.uint8] | None = None

    def price_image(self, job: ImageJob) -> Price:
        return unet.price_request(
            self._engines.unet_limits(), job.height, job.width, len(job.encoded or b""), job.probabilities
        )

    def price_text(self, job: TextJob) -> Price:
        return llama.price_request(self._engines.llama_limits(), len(job.prompt_ids), job.max_tokens, job.n)

    @asynccontextmanager
    async def _hold_image(self, job: ImageJob, timeout_s: float) -> AsyncIterator[Held]:
        self.jobs.append(job)
        lines = self.price_image(job).by_account()
        if self.refusal is not None:
            raise self.refusal
        self.timeouts_s.append(timeout_s)
        lease = Lease(f"lease-{len(self.held) + 1}", lines, timeout_s, canvas_bytes=lines.get(UNET_CANVAS, 0))
        held = Held(cast(Any, None), lease)
        self.held.append(held)
        try:
            yield held
        except BaseException as error:
            self.ended.append(type(error).__name__)
            raise
        self.ended.append("abandoned" if held.statement is None else "settled")

    @asynccontextmanager
    async def sending_image(
        self, job: ImageJob, timeout_s: float, send: Callable[[Held], Awaitable[Answer]]
    ) -> AsyncIterator[Answer]:
        async with self._hold_image(job, timeout_s) as held:
            yield await send(held)

    @asynccontextmanager
    async def segmenting(self, job: ImageJob, timeout_s: float) -> AsyncIterator[ImageResult]:
        async with self._hold_image(job, timeout_s) as held:
            held.statement = STATEMENT
            mask = mask_of(job.height, job.width) if self.mask is None else self.mask
            mask.flags.writeable = False
            yield ImageResult(mask, None, STATEMENT, self.price_image(job))

    async def generate(self, job: TextJob, timeout_s: float, *, whole: bool = False) -> FakeRun:
        if self.refusal is not None:
            raise self.refusal
        self.jobs.append(job)
        self.timeouts_s.append(timeout_s)
        self.runs.append(FakeRun(self.chunks, self.error))
        return self.runs[-1]


@dataclass
class FakeTriton:
    """Triton's KServe port, written from the protocol and not from our own reader of it."""

    error: tuple[int, str] | None = None
    """Status and text in place of an answer to ``infer``."""
    statement: Statement | None = STATEMENT
    answers: dict[str, Any] = field(default_factory=dict)
    """Path -> JSON of a GET; others are unknown."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    header: dict[str, Any] = field(default_factory=dict)
    """JSON header of the last inference."""
    binary: bytes = b""
    """What stood behind it."""

    async def look_up(self, path: str) -> Reply:
        self.asked.append(("GET", path))
        answer = self.answers.get(path)
        status = 404 if answer is None else 200
        return Reply(status, {}, json.dumps(answer or {"error": "unknown model"}).encode())

    async def forward(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Reply:
        self.asked.append((method, path))
        length = int((headers or {}).get(HEADER_LENGTH, len(body or b"")))
        self.header, self.binary = json.loads((body or b"")[:length]), (body or b"")[length:]
        if self.error is not None:
            return Reply(self.error[0], {}, json.dumps({"error": self.error[1]}).encode())
        return self._infer()

    def _infer(self) -> Reply:
        shape = next(tensor["shape"] for tensor in self.header["inputs"] if tensor["name"] in ("image", "encoded"))
        height, width = shape[:2] if len(shape) == 3 else (2, 3)
        arrays: dict[str, NDArray[Any]] = {
            "mask": mask_of(height, width),
            "probabilities": np.linspace(0, 1, height * width, dtype=np.float32).reshape(1, height, width),
        }
        outputs: list[dict[str, Any]] = []
        pieces: list[bytes] = []
        for wanted in self.header["outputs"]:
            name = wanted["name"]
            if name == "statement":
                if self.statement is not None:
                    data = [replace(self.statement, lease=self._lease().id).to_json()]
                    outputs.append({"name": name, "datatype": "BYTES", "shape": [1], "data": data})
                continue
            output = {
                "name": name,
                "datatype": "UINT8" if name == "mask" else "FP32",
                "shape": list(arrays[name].shape),
            }
            if wanted["parameters"].get("binary_data"):
                pieces.append(arrays[name].tobytes())
                outputs.append(output | {"parameters": {"binary_data_size": len(pieces[-1])}})
            else:
                outputs.append(output | {"data": arrays[name].ravel().tolist()})
        about = {"id": self.header["id"]} if "id" in self.header else {}
        text = json.dumps(about | {"model_name": "unet", "model_version": "1", "outputs": outputs}).encode()
        return Reply(200, {HEADER_LENGTH: str(len(text))} if pieces else {}, text + b"".join(pieces))

    def _lease(self) -> Lease:
        (tensor,) = (tensor for tensor in self.header["inputs"] if tensor["name"] == "lease")
        assert tensor["shape"] == [1]
        assert tensor["datatype"] == "BYTES"
        return Lease.from_json(tensor["data"][0])


class FakeTokenizer:
    """One token per character, its code point."""

    longest_token_chars = 1
    vocab_tokens = PAGES.vocab_tokens

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [ord(character) for character in text]


class FakeTokenizers:
    async def get(self) -> FakeTokenizer:
        return FakeTokenizer()


class Parts:
    """The fakes, and an HTTP client of the real app over them."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.engines = FakeEngines()
        self.teller = FakeTeller(self.engines)
        self.triton = FakeTriton()
        fakes: dict[str, Any] = dict.fromkeys(("ledger", "admission", "journal"))
        fakes |= {"engines": self.engines, "teller": self.teller, "triton": self.triton}
        services = Services(
            settings=self.settings,
            clock=lambda: 0.0,
            metrics=Metrics(),
            tokenizers=cast(Any, FakeTokenizers()),
            **fakes,
        )
        self._app = create_app(self.settings, services)

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request to the app."""
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://vramgate") as client:
            return await client.request(method, path, **options)


def check_error(answer: httpx.Response, status: int, code: str) -> str:
    """The message of an error in the contract's form."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() >= {"message", "type", "param", "code"}
    assert error["code"] == code
    return str(error["message"])


def vram_headers() -> dict[str, str]:
    """What a picture's headers say of STATEMENT."""
    return {f"x-vramgate-{name.replace('_', '-')}": str(value) for name, value in vram(STATEMENT).items()}
