"""The model on its device: weights, page pool, and one step's forward pass."""

import random
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from backend.llama.attention import PagedAttention, Span
from backend.llama.flight import Flight, resolve
from backend.llama.model import Llama
from backend.llama.pages import PagePool
from backend.llama.request import Sampling
from backend.llama.sampling import Draw, choose
from backend.llama.scheduler import Sequence as Tokens
from backend.llama.scheduler import Slice
from estimator.llama import gather_pages, pages_for

_CPU_WARM_TOKENS = 16


class Runner:
    """Runs steps. All methods but the constructor belong to the engine's thread."""

    def __init__(
        self, model: Llama, pool: PagePool, step_tokens: int, max_batch: int, fast: "FastPath | None" = None
    ) -> None:
        """`fast` is what the device has better than the reference path."""
        self.model = model
        self.pool = pool
        self._step_tokens = step_tokens
        self._max_batch = min(max_batch, step_tokens)
        self._fast = fast
        self._gather_pages = gather_pages(model.shape.context_tokens, pool.page_tokens, pool.pages, max_batch)

    @property
    def device(self) -> torch.device:
        """Where everything lies."""
        return self.pool.device

    @torch.inference_mode()
    def forward(self, step: Sequence[Slice], before: Flight | None = None) -> torch.Tensor:
        """Logits [slices that sample, vocab], in the order of `step`. May be repeated: the same writes happen again.

        They are valid until the next call. `before` is the step whose tokens are in flight. Raises ValueError where a
        token is not known and none is in flight: an id below zero would cost the device its context.
        """
        if before is None and any(slice_.last_token < 0 for slice_ in step):
            raise ValueError("a token of the step is not known")
        return self._fast.forward(step, before) if self._fast else self._reference(step, before)

    def _reference(self, step: Sequence[Slice], before: Flight | None) -> torch.Tensor:
        """See ``forward``; decodes and chunks in one pass, right on any device."""
        # Decodes by length, so that neighbours need about as many pages.
        order = sorted(range(len(step)), key=lambda index: (step[index].count > 1, step[index].end))
        slices = [step[index] for index in order]
        spans = [Span(slice_.sequence.pages, slice_.start, slice_.count) for slice_ in slices]
        last_row, row = {}, -1
        for index, slice_ in zip(order, slices, strict=True):
            row += slice_.count
            last_row[index] = row
        return self.model.forward(
            resolve(self._tensor([token_id for slice_ in slices for token_id in slice_.token_ids]), before),
            self._tensor([position for span in spans for position in range(span.start, span.end)]),
            self._tensor([last_row[index] for index, slice_ in enumerate(step) if slice_.samples]),
            PagedAttention(self.pool, spans, self._gather_pages),
        )

    @torch.inference_mode()
    def clear(self, pages: Iterable[int]) -> None:
        """Forgets what pages hold, where it may be no numbers."""
        self.pool.clear(pages)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Goes through the largest steps that may come, so that memory is taken now and never moves again.

        Their keys and values go to the page that is never lent. The CPU keeps no memory back, so there full batches
        of short sequences, which load every kernel, are enough.
        """
        if self._fast is not None:
            self._fast.capture()
        longest = min(self.model.shape.context_tokens, self.pool.pages * self.pool.page_tokens)
        if self.device.type == "cpu":
            longest = min(longest, _CPU_WARM_TOKENS)
        decodes = [self._imagined(longest, 1), *[self._imagined(1, 1) for _ in range(self._max_batch - 1)]]
        whole_chunk = min(self._step_tokens, longest)
        mixed_chunk = min(self._step_tokens - self._max_batch + 1, longest)
        for step in (
            [self._imagined(longest, whole_chunk)],
            decodes,
            [*decodes[1:], self._imagined(longest, mixed_chunk)],
        ):
            logits = self.forward(step)
            for sampling in _DEMANDING:
                choose(logits, [Draw(sampling, (0,), random.Random(0)) for _ in step]).read()

    def _imagined(self, tokens: int, count: int) -> Slice:
        """The last `count` of so many tokens, in no real page."""
        pages = [self.pool.trash] * pages_for(tokens, self.pool.page_tokens)
        sequence = Tokens([0] * tokens, max_tokens=1, pages=pages, computed=tokens - count)
        return Slice.next_of(sequence, count)

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


class FastPath(Protocol):
    """Better ways for a device than the reference path."""

    def capture(self) -> None:
        """Takes its memory and makes itself ready."""

    def forward(self, step: Sequence[Slice], before: Flight | None = None) -> torch.Tensor:
        """See :meth:`Runner.forward`; the logits are float32."""


_DEMANDING = (
    Sampling(temperature=1.0, repetition_penalty=1.1, logprobs=1),
    # Nearly all of the mass: the shortlist never suffices, so the whole vocabulary is sorted.
    Sampling(temperature=10.0, top_p=0.999),
)
