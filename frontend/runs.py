"""What the teller is asked to run, and what it hands back while the engine works."""

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from common.errors import InternalFault, RequestError, UpstreamBroken
from common.wire import Statement
from estimator.price import Price


@dataclass(frozen=True)
class TextJob:
    """A validated text request; the ranges are the routes' business."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    """How many alternatives per token; None is no log probabilities at all."""
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def inputs(self) -> dict[str, Any]:
        """The job as inputs of the language model, in the JSON of ``generate_stream``."""
        inputs: dict[str, Any] = {
            "input_ids": list(self.prompt_ids),
            "max_tokens": self.max_tokens,
            "n": self.n,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "repetition_penalty": self.repetition_penalty,
            "stream": True,
        }
        optional = {"logprobs": self.logprobs, "seed": self.seed, "stop": list(self.stop) or None}
        return inputs | {name: value for name, value in optional.items() if value is not None}


@dataclass(frozen=True)
class TextChunk:
    """A piece of one of the n answers."""

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: list[Any] | None = None
    """As the engine spells them; one item per token."""
    finish_reason: str | None = None
    """``stop`` or ``length`` on the last chunk of this index."""

    @classmethod
    def read(cls, event: Mapping[str, Any]) -> Self | None:
        """The chunk in one event of the language model; None where there is none. Raises UpstreamBroken."""
        try:
            ids = event.get("token_ids", [])
            logprobs = event.get("logprobs")
            chunk = cls(
                index=int(event.get("index", 0)),
                text=str(event.get("text_output", "")),
                token_ids=tuple(ids) if isinstance(ids, list) else (int(ids),),
                logprobs=json.loads(logprobs) if logprobs else None,
                finish_reason=event.get("finish_reason") or None,
            )
        except (TypeError, ValueError) as error:
            raise UpstreamBroken(f"the language model sent no chunk: {error}") from None
        return chunk if chunk.text or chunk.token_ids or chunk.finish_reason else None

    def join(self, other: Self) -> Self:
        """One chunk of two of the same answer that follow each other."""
        logprobs = [*(self.logprobs or []), *(other.logprobs or [])]
        return replace(
            self,
            text=self.text + other.text,
            token_ids=self.token_ids + other.token_ids,
            logprobs=logprobs or None,
            finish_reason=other.finish_reason or self.finish_reason,
        )


async def gather(run: AsyncIterable[TextChunk]) -> tuple[TextChunk, ...]:
    """The whole answers, by index; raises the RequestError that ended the run early."""
    whole: dict[int, TextChunk] = {}
    async for chunk in run:
        whole[chunk.index] = whole[chunk.index].join(chunk) if chunk.index in whole else chunk
    return tuple(whole[index] for index in sorted(whole))


@dataclass(frozen=True)
class ImageJob:
    """A validated image request: either `encoded` or `image`."""

    height: int
    width: int
    """After EXIF rotation, in pixels."""
    encoded: bytes | None = None
    """PNG, JPEG or TIFF."""
    image: NDArray[np.uint8] | None = None
    """uint8 [H, W, 3]."""
    threshold: float | None = None
    probabilities: bool = False

    @property
    def body_bytes(self) -> int:
        """Host memory that it takes while it waits."""
        return len(self.encoded or b"") + (0 if self.image is None else self.image.nbytes)

    def inputs(self) -> dict[str, NDArray[Any]]:
        """The job as inputs of the segmentation model."""
        if (self.encoded is None) == (self.image is None):
            raise InternalFault("an image job has either encoded bytes or an array")
        inputs: dict[str, NDArray[Any]] = {}
        if self.image is not None:
            inputs["image"] = self.image
        else:
            inputs["encoded"] = np.array([self.encoded], dtype=np.object_)
        if self.threshold is not None:
            inputs["threshold"] = np.array([self.threshold], dtype=np.float32)
        return inputs


def vram(statement: Statement, reruns: int = 0) -> dict[str, int | str]:
    """The ``vram`` object of an answer; `reruns` are told where there were any."""
    told: dict[str, int | str] = {
        "quoted_bytes": statement.quoted_bytes,
        "held_bytes": statement.held_bytes,
        "peak_bytes": statement.process_peak_bytes,
        "rung": statement.rung,
    }
    return told | ({"reruns": reruns} if reruns else {})


@dataclass(frozen=True)
class ImageResult:
    """A finished segmentation."""

    mask: NDArray[np.uint8]
    """uint8 [H, W]."""
    probabilities: NDArray[np.float32] | None
    """float32 [C, H, W], where they were asked for."""
    statement: Statement
    price: Price
    reruns: int = 0
    """How often it was run again, because its engine's process had ended."""

    def vram(self) -> dict[str, int | str]:
        """The ``vram`` object of the answer."""
        return vram(self.statement, self.reruns)


class TextRun:
    """A text request that runs: iterate it for its chunks, close it when the client has left.

    A task of the teller feeds it, so the lease ends with the work however slowly the chunks are read; what is not yet
    read waits here and is bounded by the tokens that were paid for.
    """

    def __init__(self, price: Price, *, whole: bool = False) -> None:
        """`whole`: its reader wants nothing before the end, so a part that came can still be taken back."""
        self.price = price
        self.reruns = 0
        """How often it was run again, because its engine's process had ended."""
        self.lease_id = ""
        """Known once the run has started."""
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the engine's first response; holds the error of a run that never came so far."""
        self.task: asyncio.Task[None] | None = None
        """What feeds it."""
        self._whole = whole
        self._held_back: list[TextChunk] = []
        self._chunks: asyncio.Queue[TextChunk | None] = asyncio.Queue()
        self._statement: Statement | None = None
        self._error: RequestError | None = None

    @property
    def statement(self) -> Statement:
        """What was quoted, held and used; there once the iteration has ended."""
        if self._statement is None:
            raise InternalFault("the statement of a run that has not ended was asked for")
        return self._statement

    def vram(self) -> dict[str, int | str]:
        """The ``vram`` object of the answer, once the iteration has ended."""
        return vram(self.statement, self.reruns)

    def __aiter__(self) -> AsyncIterator[TextChunk]:
        return self

    async def __anext__(self) -> TextChunk:
        """The next chunk; raises the RequestError that ended the run early."""
        chunk = await self._chunks.get()
        if chunk is not None:
            return chunk
        self._chunks.put_nowait(None)
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the run: the work is cancelled, its lease abandoned. Harmless after the end and when repeated."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    def start(self) -> None:
        """The engine has it."""
        if not self.started.done():
            self.started.set_result(None)

    def put(self, chunk: TextChunk) -> None:
        """A part of the answer."""
        if self._whole:
            self._held_back.append(chunk)
        else:
            self._chunks.put_nowait(chunk)

    def may_repeat(self) -> bool:
        """Whether nothing of the answer, not even that there will be one, has reached its reader."""
        return self._whole or not self.started.done()

    def repeat(self) -> None:
        """Takes back what came: it is run again."""
        self.reruns += 1
        self._held_back.clear()

    def finish(self, statement: Statement) -> None:
        """The answer is complete."""
        for chunk in self._held_back:
            self._chunks.put_nowait(chunk)
        self._statement = statement
        self.start()
        self._chunks.put_nowait(None)

    def fail(self, error: RequestError) -> None:
        """There is no (further) answer."""
        self._error = error
        self._chunks.put_nowait(None)
        if not self.started.done():
            self.started.set_exception(error)
