"""One request in flight: its sequences, its times, its way out."""

import math
from dataclasses import dataclass, field

from backend.engine import Outlet
from backend.fallback import Rung, deeper
from backend.llama.detokenise import Detokeniser
from backend.llama.request import Chunk, Generation, TokenLogprob
from backend.llama.sampling import Choice, Draw, generator_of
from backend.llama.scheduler import Sequence
from common.tokenizer import Tokenizer
from common.wire import Statement


class Answer:
    """One of a request's sequences, and its text."""

    def __init__(self, job: "Job", index: int, tokenizer: Tokenizer) -> None:
        generation = job.generation
        self.job = job
        self.index = index
        self.sequence = Sequence(list(generation.prompt_ids), generation.max_tokens)
        self.finish_reason: str | None = None
        self.is_told = False
        """Whether its last chunk was made."""
        self._tokenizer = tokenizer
        self.draw = Draw(generation.sampling, self.sequence.tokens, generator_of(generation.sampling, index))
        """What decides its next token."""
        self._detokeniser = Detokeniser(tokenizer, generation.prompt_ids, generation.stop)

    def note(self, choice: Choice) -> bool:
        """Whether the newest token is the last by what it is or by their number; sets ``finish_reason`` then."""
        if choice.token_id in self._tokenizer.eos_ids:
            self.finish_reason = "stop"
        elif len(self.sequence.tokens) >= self.sequence.most_tokens:
            self.finish_reason = "length"
        return self.finish_reason is not None

    def say(self, choice: Choice) -> Chunk:
        """The chunk that the newest token adds; sets ``finish_reason`` where its text completes a stop string."""
        text = "" if choice.token_id in self._tokenizer.eos_ids else self._detokeniser.step(choice.token_id)
        if self._detokeniser.stopped:
            self.finish_reason = "stop"
        if self.finish_reason is not None:
            text += self._detokeniser.finish()
            self.is_told = True
        return Chunk(self.index, text, (choice.token_id,), self._logprobs(choice), self.finish_reason)

    def _logprobs(self, choice: Choice) -> tuple[TokenLogprob, ...] | None:
        if choice.logprob is None:
            return None
        text = self._tokenizer.token_text
        top = tuple((token_id, text(token_id), logprob) for token_id, logprob in choice.top)
        return (TokenLogprob(choice.token_id, text(choice.token_id), choice.logprob, top),)


@dataclass(eq=False)
class Job:
    """A generation and everything the engine knows of it. Times are the engine's clock, in seconds."""

    id: str
    generation: Generation
    outlet: Outlet[Chunk]
    arrived_s: float
    page_bytes: int
    """Of the pool that its lease paid for."""
    answers: list[Answer] = field(default_factory=list)
    cancelling: bool = False
    started_s: float | None = None
    """When its first token went into a step."""
    prefilled_s: float | None = None
    """When its first output token came."""
    most_pages: int = 0
    rung: Rung = Rung.NONE
    """The deepest that it needed."""
    late_s: float = field(init=False)
    """When the time that the caller gave is used up."""

    def __post_init__(self) -> None:
        lease = self.generation.lease
        self.late_s = self.arrived_s + lease.deadline_s if lease else math.inf

    @property
    def is_done(self) -> bool:
        """Whether every sequence has come to its end, and said so."""
        return all(answer.is_told for answer in self.answers)

    @property
    def held_pages(self) -> int:
        """Pages its sequences hold now."""
        return sum(len(answer.sequence.pages) for answer in self.answers)

    def note_step(self, now_s: float) -> None:
        """A step that begins now has tokens of this job."""
        if self.started_s is None:
            self.started_s = now_s
        self.most_pages = max(self.most_pages, self.held_pages)

    def note_token(self, now_s: float) -> None:
        """An output token came."""
        if self.prefilled_s is None:
            self.prefilled_s = now_s

    def note_rung(self, rung: Rung) -> None:
        """Memory ran out for it, and this was done."""
        self.rung = deeper(self.rung, rung)

    def statement(self, now_s: float, process_peak_bytes: int) -> Statement:
        """What it was quoted, held and used."""
        started_s = self.started_s if self.started_s is not None else now_s
        prefilled_s = self.prefilled_s if self.prefilled_s is not None else now_s
        generation = self.generation
        return Statement(
            lease=generation.lease.id if generation.lease else None,
            model="llama",
            quoted_bytes=generation.quoted_bytes,
            held_bytes=self.most_pages * self.page_bytes,
            process_peak_bytes=process_peak_bytes,
            rung=self.rung,
            queue_s=started_s - self.arrived_s,
            run_s=now_s - started_s,
            prompt_tokens=len(generation.prompt_ids),
            output_tokens=sum(len(answer.sequence.output_ids) for answer in self.answers),
            pages=self.most_pages,
            prefill_s=prefilled_s - started_s,
            decode_s=now_s - prefilled_s,
            preemptions=sum(answer.sequence.preemptions for answer in self.answers),
        )
