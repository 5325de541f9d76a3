"""Which tokens go through the model next: continuous batching over a fixed pool of pages. No tensors, no clock.

Every step mixes decodes (one token of each running sequence) with prefill chunks within a budget of tokens. Sequences
start in the order they came. By default one starts when the pages of its prompt and its longest answer are free, and
holds them to its end. With `lazily` it starts with the pages of its prompt and takes more as it grows; when none are
free the newest sequence gives its pages back, waits in front of the line, and is computed anew later.
"""

from collections import deque
from dataclasses import dataclass, field

from backend.llama.pages import PageMap
from estimator.llama import pages_for


@dataclass(eq=False)
class Sequence:
    """One answer in the making. Its tokens are the prompt and what was generated so far."""

    tokens: list[int]
    max_tokens: int
    """Output tokens at most."""
    prompt_tokens: int = 0
    """Of `tokens`, those that came with the request."""
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    """Tokens whose keys and values lie in the pages."""
    preemptions: int = 0

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens the model has yet to see; 1 when it decodes."""
        return len(self.tokens) - self.computed

    @property
    def output_ids(self) -> list[int]:
        """What was generated so far."""
        return self.tokens[self.prompt_tokens :]

    @property
    def most_tokens(self) -> int:
        """Prompt and longest answer."""
        return self.prompt_tokens + self.max_tokens


@dataclass(frozen=True, slots=True)
class Slice:
    """`count` tokens of a sequence from position `start` on, to go through the model in one step."""

    sequence: Sequence
    start: int
    count: int
    samples: bool
    """Whether it reaches the last token, so that its logits choose the next one."""

    @classmethod
    def next_of(cls, sequence: Sequence, budget: int) -> "Slice":
        """As many of the pending tokens as the budget allows."""
        count = min(sequence.pending, budget)
        return cls(sequence, sequence.computed, count, samples=count == sequence.pending)

    @property
    def is_decode(self) -> bool:
        """One token, and its successor is wanted."""
        return self.count == 1 and self.samples

    @property
    def end(self) -> int:
        """Tokens in the cache after this."""
        return self.start + self.count

    @property
    def token_ids(self) -> list[int]:
        """The tokens themselves."""
        return self.sequence.tokens[self.start : self.end]

    @property
    def last_token(self) -> int:
        """The last of them."""
        return self.sequence.tokens[self.end - 1]


def halves(step: list[Slice]) -> tuple[list[Slice], list[Slice]]:
    """The step as two with about half of its tokens each; a slice across the middle is cut, and samples at its end."""
    first: list[Slice] = []
    second: list[Slice] = []
    budget = sum(slice_.count for slice_ in step) // 2
    for slice_ in step:
        head = min(slice_.count, budget)
        budget -= head
        if head == slice_.count:
            first.append(slice_)
            continue
        if head:
            first.append(Slice(slice_.sequence, slice_.start, head, samples=False))
        second.append(Slice(slice_.sequence, slice_.start + head, slice_.count - head, slice_.samples))
    return first, second


CALM_STEPS = 32
"""Steps after which twice as many sequences may run as memory lately allowed."""


class Scheduler:
    """Two lines, waiting and running, over one map of pages. Used by one thread."""

    def __init__(
        self, pages: PageMap, page_tokens: int, step_tokens: int, max_batch: int, *, lazily: bool = False
    ) -> None:
        self.pages = pages
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """In the order they started; the last is the newest."""
        self.preempted_pages: list[int] = []
        """Pages of those that gave way, for whoever clears them to take from here."""
        self._page_tokens = page_tokens
        self._step_tokens = step_tokens
        self._max_batch = min(max_batch, step_tokens)
        self._limit = self._max_batch
        """Sequences that may run now."""
        self._calm_steps = 0
        self._lazily = lazily

    @property
    def idle(self) -> bool:
        """Nobody waits, nobody runs."""
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        """Puts a sequence at the end of the line; raises ValueError for one that no empty pool could hold."""
        if pages_for(sequence.most_tokens, self._page_tokens) > self.pages.pages:
            raise ValueError(f"{sequence.most_tokens} tokens exceed {self.pages.pages} pages")
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> list[int]:
        """Takes a sequence out, wherever it is; returns the pages that became free."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        return self._give_back(sequence)

    def plan(self) -> list[Slice]:
        """The next step, decodes first; empty when there is nothing to do. Pages are taken here."""
        self._recover()
        if self._lazily:
            self._grow_decodes()
        step = [
            Slice(sequence, sequence.computed, 1, samples=True)
            for sequence in self.running
            if sequence.pending == 1 and len(sequence.tokens) < sequence.most_tokens
        ]
        step += self._chunks(self._step_tokens - len(step))
        step += self._starts(self._step_tokens - sum(slice_.count for slice_ in step))
        return step

    def shrink(self) -> None:
        """Preempts the newer half of what runs; for a while no more may run than what is left."""
        for _ in range(len(self.running) // 2):
            self._preempt_newest()
        self._limit, self._calm_steps = max(1, len(self.running)), 0

    def advance(self, done: Slice, token_id: int | None) -> None:
        """Records that a slice goes through the model, and the token it chose or what stands for it."""
        done.sequence.computed = done.end
        if token_id is not None:
            done.sequence.tokens.append(token_id)

    def check(self) -> None:
        """Raises ValueError, printing the equation, when pages and sequences do not add up."""
        self.pages.check(sequence.pages for sequence in (*self.running, *self.waiting))

    def _chunks(self, budget: int) -> list[Slice]:
        """Prefill of sequences that have started."""
        chunks = []
        for sequence in self.running:
            if sequence.pending > 1 and budget > 0:
                chunks.append(Slice.next_of(sequence, budget))
                budget -= chunks[-1].count
        return chunks

    def _starts(self, budget: int) -> list[Slice]:
        """First chunks of sequences that start now; who came first starts first."""
        chunks: list[Slice] = []
        while self.waiting and budget > 0 and len(self.running) < self._limit:
            sequence = self.waiting[0]
            pages = pages_for(self._held_tokens(sequence), self._page_tokens)
            if not self.pages.fits(pages):
                break
            self.running.append(self.waiting.popleft())
            sequence.pages = self.pages.allocate(pages)
            chunks.append(Slice.next_of(sequence, budget))
            budget -= chunks[-1].count
        return chunks

    def _held_tokens(self, sequence: Sequence) -> int:
        """Tokens that a sequence must have pages for when it starts."""
        return min(len(sequence.tokens) + 1, sequence.most_tokens) if self._lazily else sequence.most_tokens

    def _recover(self) -> None:
        self._calm_steps += 1
        if self._calm_steps >= CALM_STEPS:
            self._limit, self._calm_steps = min(2 * self._limit, self._max_batch), 0

    def _grow_decodes(self) -> None:
        """A page for each decode that needs one, oldest first; the newest sequences pay when there is none.

        Ends: the oldest can always have the whole pool.
        """
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            # The last token of the longest answer is never seen by the model.
            if len(sequence.pages) * self._page_tokens >= min(len(sequence.tokens), sequence.most_tokens - 1):
                index += 1
            elif self.pages.fits(1):
                sequence.pages += self.pages.allocate(1)
            else:
                self._preempt_newest()

    def _preempt_newest(self) -> None:
        newest = self.running.pop()
        self.preempted_pages += self._give_back(newest)
        newest.computed = 0
        newest.preemptions += 1
        self.waiting.appendleft(newest)

    def _give_back(self, sequence: Sequence) -> list[int]:
        pages, sequence.pages = sequence.pages, []
        self.pages.release(pages)
        return pages
