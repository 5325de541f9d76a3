"""The bank with all its real parts, and engines that say what a test tells them."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx

from common.errors import NotReady
from common.sections import State
from common.settings import Settings
from common.wire import HOST, LLAMA_PAGES, UNET_CANVAS, Breaker, EngineStatus, LlamaLimits, UnetLimits
from frontend.admission import Admission
from frontend.app import create_app
from frontend.engines import Engines
from frontend.journal import Journal
from frontend.ledger import Ledger
from frontend.metrics import Metrics
from frontend.services import Services, Tokenizers
from frontend.teller import Teller
from frontend.triton import Triton

PAGES = LlamaLimits(
    context_tokens=64, vocab_tokens=300, page_tokens=4, page_bytes=100, pages=10, tokenizer_dir="/nowhere"
)
TILES = UnetLimits(
    classes=1,
    class_names=("nucleus",),
    tile_pixels=32,
    overlap_pixels=8,
    canvas_bytes=100_000,
    canvas_itemsize=2,
    max_pixels=10**6,
    default_threshold=0.5,
)


def status(model: str, **changes: Any) -> EngineStatus:
    """An idle engine, but for `changes`."""
    is_llama = model == "llama"
    told: dict[str, Any] = {
        "model": model,
        "boot_id": "boot",
        "ready": True,
        "reason": "",
        "device": "cpu",
        "standing": {"weights": 1000, "pool": 500},
        "account": LLAMA_PAGES if is_llama else UNET_CANVAS,
        "capacity_bytes": 1000 if is_llama else 100_000,
        "used_bytes": 0,
        "unleased_bytes": 0,
        "leases": (),
        "pool_keys": (),
        "breaker": Breaker.CLOSED,
        "headroom_bytes": 250,
        "fragmentation_ratio": 0.25,
        "llama": PAGES if is_llama else None,
        "unet": None if is_llama else TILES,
        "card_bytes": 1000,
    }
    return EngineStatus(**(told | changes))


class StillEngines(Engines):
    """Never polls: `told` is what the engines last said, and one that is not there has said nothing."""

    told: dict[str, EngineStatus]

    def status(self, model: str) -> EngineStatus:
        """As told; raises NotReady."""
        if model not in self.told:
            raise NotReady(f"{model} is not ready: it has not answered yet")
        return self.told[model]

    def ready(self) -> tuple[bool, dict[str, str]]:
        """Whether all have said so."""
        reasons = {model: "it has not answered yet" for model in ("llama", "unet") if model not in self.told}
        reasons |= {model: said.reason for model, said in self.told.items() if not said.ready}
        return not reasons, reasons


class Words:
    """One token per word."""

    longest_token_chars = 20

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids without meaning."""
        return [1] * special + [2] * len(text.split())

    def chat(self, messages: Sequence[dict[str, str]]) -> str:
        """A word for the role, then the content."""
        return " ".join(f"{message['role']}: {message['content']}" for message in messages)


class _WordsForAll:
    async def get(self) -> Words:
        return Words()


@dataclass
class Bank:
    """The services, and a client of their app."""

    services: Services
    engines: StillEngines
    client: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        transport = httpx.ASGITransport(create_app(self.services.settings, self.services))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://bank")

    async def quote(self, **body: Any) -> httpx.Response:
        """``POST /v1/quote``."""
        return await self.client.post("/v1/quote", json=body)

    async def get(self, path: str) -> Any:
        """The JSON of an answer that must be 200."""
        answer = await self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def open_bank(folder: Path) -> AsyncIterator[Bank]:
    """Accounts of 1,000 bytes of pages, 100,000 of canvas and a million of host memory."""
    settings, clock = Settings(), time.monotonic
    ledger = Ledger(clock)
    for account, size in ((HOST, 10**6), (LLAMA_PAGES, 1000), (UNET_CANVAS, 100_000)):
        ledger.set_capacity(account, size)
    admission = Admission(ledger, settings.admission, clock)
    journal, metrics, triton = Journal(folder / "journal.sqlite3", State()), Metrics(), Triton("http://127.0.0.1:1")
    engines = StillEngines(triton, ledger, admission)
    engines.told = {model: status(model) for model in ("llama", "unet")}
    teller = Teller(engines, admission, ledger, triton, journal, metrics, settings, clock)
    words = cast(Tokenizers, _WordsForAll())
    bank = Bank(Services(settings, clock, ledger, admission, journal, metrics, triton, engines, teller, words), engines)
    try:
        async with bank.client:
            yield bank
    finally:
        journal.close()
