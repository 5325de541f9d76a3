"""Engines behind a fake Triton; like the real ones they go on when a client leaves, until they are cancelled."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web

from common.wire import ActiveLease, Breaker, EngineStatus, Lease, LlamaLimits, Statement, UnetLimits
from tests.unit.fake_triton import Handler, event

Work = Callable[[Lease, asyncio.Event], Coroutine[Any, Any, None]]
"""What an engine does for one lease; the event is its cancel."""

PAGE_BYTES = 100
PAGES = LlamaLimits(
    context_tokens=64, vocab_tokens=99, page_tokens=4, page_bytes=PAGE_BYTES, pages=10, tokenizer_dir="/nowhere"
)
TILES = UnetLimits(
    classes=1,
    class_names=("nucleus",),
    tile_pixels=32,
    overlap_pixels=8,
    canvas_bytes=100_000,
    canvas_itemsize=4,
    max_pixels=1_000_000,
    default_threshold=0.5,
)


@dataclass
class FakeEngine:
    """One model. The events are gates: clear one, and the engine stops there."""

    model: str
    boot_id: str = "boot-1"
    tokens: int = 3
    gone: str = ""
    """What the server says in its place, once its process has died."""
    stop_s: float = 0.0
    """How long cancelled work goes on."""
    failure: str | None = None
    """Error text that takes the place of the second token, or of the mask."""
    hangup: bool = False
    """Whether the stream ends there without a word."""
    admit: asyncio.Event = field(default_factory=asyncio.Event)
    """Before the first response."""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    """After the first token, or before the mask."""
    active: dict[str, asyncio.Event] = field(default_factory=dict)
    """Lease id -> its cancel."""
    seen: list[dict[str, Any]] = field(default_factory=list)
    """The inputs of everything that was started."""
    cancels: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    works: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.admit.set()
        self.go.set()

    def routes(self) -> tuple[tuple[str, str, Handler], ...]:
        """What the fake Triton serves for this model."""
        base = f"/v2/models/{self.model}"
        return (
            ("POST", f"{base}/generate", self._control),
            ("POST", f"{base}/generate_stream", self._stream),
            ("POST", f"{base}/infer", self._infer),
        )

    def status(self) -> EngineStatus:
        """What it says of itself."""
        is_llama = self.model == "llama"
        return EngineStatus(
            model=self.model,
            boot_id=self.boot_id,
            ready=True,
            reason="",
            device="cpu",
            standing={},
            account="llama.pages" if is_llama else "unet.canvas",
            capacity_bytes=PAGES.pages * PAGE_BYTES if is_llama else TILES.canvas_bytes,
            used_bytes=0,
            unleased_bytes=0,
            leases=tuple(ActiveLease(lease, PAGE_BYTES, cancel.is_set()) for lease, cancel in self.active.items()),
            pool_keys=(),
            breaker=Breaker.CLOSED,
            headroom_bytes=None,
            fragmentation_ratio=0.0,
            llama=PAGES if is_llama else None,
            unet=None if is_llama else TILES,
        )

    def restart(self, boot_id: str) -> None:
        """A new process: the work of the old one is gone without a word."""
        self.boot_id = boot_id
        for work in self.works:
            work.cancel()
        self.active.clear()

    async def _control(self, request: web.Request) -> web.Response:
        if self.gone:
            return web.json_response({"error": self.gone}, status=400)
        message = json.loads((await request.json())["control"])
        if message["op"] == "status":
            return web.json_response({"control": self.status().to_json()})
        lease = message["lease"]
        self.cancels.append(lease)
        if lease in self.active:
            self.active[lease].set()
            return web.json_response({"control": '{"outcome": "cancelled"}'})
        self.refused.add(lease)
        return web.json_response({"control": '{"outcome": "unknown"}'})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        inputs = await request.json()
        answer: asyncio.Queue[bytes] = asyncio.Queue()
        if not self._start(inputs, lambda lease, cancel: self._write(lease, cancel, answer)):
            return web.json_response({"error": "[CANCELLED] it was cancelled before it came"}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while data := await answer.get():
            await response.write(data)
        return response

    async def _infer(self, request: web.Request) -> web.Response:
        body = await request.read()
        split = int(request.headers["Inference-Header-Content-Length"])
        header = json.loads(body[:split])
        image, lease = body[split:], json.loads(body[body.rindex(b'{"id"') :])
        answer: asyncio.Queue[bytes] = asyncio.Queue()
        inputs = {"lease": json.dumps(lease), "image": image, "outputs": [item["name"] for item in header["outputs"]]}
        if not self._start(inputs, lambda lease, cancel: self._segment(lease, cancel, answer)):
            return web.json_response({"error": "[CANCELLED] it was cancelled before it came"}, status=400)
        text = (await answer.get()).decode()
        if text.startswith("["):
            return web.json_response({"error": text}, status=500)
        mask = np.ones((2, 3), np.uint8)
        outputs = [{"name": "mask", "datatype": "UINT8", "shape": [2, 3], "data": mask.flatten().tolist()}]
        outputs.append({"name": "statement", "datatype": "BYTES", "shape": [1], "data": [text]})
        return web.json_response({"outputs": outputs})

    def _start(self, inputs: dict[str, Any], work: Work) -> bool:
        """Begins the work as a task of the engine's own; False where its lease was cancelled before it came."""
        lease = Lease.from_json(inputs["lease"])
        if lease.id in self.refused:
            return False
        self.seen.append(inputs)
        cancel = self.active[lease.id] = asyncio.Event()
        task = asyncio.create_task(work(lease, cancel))
        self.works.add(task)
        task.add_done_callback(self.works.discard)
        return True

    async def _write(self, lease: Lease, cancel: asyncio.Event, answer: "asyncio.Queue[bytes]") -> None:
        await self._pass(self.admit, cancel)
        answer.put_nowait(event(text_output="", token_ids=[], index=0, finish_reason="", statement=""))
        for number in range(self.tokens):
            if number == 1:
                await self._pass(self.go, cancel)
            if cancel.is_set() or (number == 1 and self.failure):
                answer.put_nowait(event(error=self.failure or "[CANCELLED] stopped"))
            if cancel.is_set() or (number == 1 and (self.failure or self.hangup)):
                break
            last = "length" if number == self.tokens - 1 else ""
            answer.put_nowait(event(text_output=f"t{number} ", token_ids=number, index=0, finish_reason=last))
            await asyncio.sleep(0)
        else:
            answer.put_nowait(event(text_output="", statement=self._statement(lease)))
        self.active.pop(lease.id, None)
        answer.put_nowait(b"")

    async def _segment(self, lease: Lease, cancel: asyncio.Event, answer: "asyncio.Queue[bytes]") -> None:
        await self._pass(self.go, cancel)
        self.active.pop(lease.id, None)
        failure = "[CANCELLED] stopped" if cancel.is_set() else self.failure
        answer.put_nowait((failure or self._statement(lease)).encode())

    async def _pass(self, gate: asyncio.Event, cancel: asyncio.Event) -> None:
        waits = [asyncio.create_task(gate.wait()), asyncio.create_task(cancel.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if cancel.is_set():
            await asyncio.sleep(self.stop_s)

    def _statement(self, lease: Lease) -> str:
        quoted_bytes = sum(size for account, size in lease.lines.items() if account != "host")
        return Statement(
            lease=lease.id,
            model=self.model,
            quoted_bytes=quoted_bytes,
            held_bytes=quoted_bytes,
            process_peak_bytes=7,
            run_s=0.5,
            output_tokens=self.tokens if self.model == "llama" else 0,
            pixels=0 if self.model == "llama" else 6,
        ).to_json()
