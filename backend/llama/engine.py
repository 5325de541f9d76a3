"""The Llama engine: one thread that batches, computes, samples and hands out; everyone else only asks.

One turn of the thread: drop what is cancelled or late, plan a step, compute it, hand out the tokens. The lock covers
the books; it is never held while the model computes or an outlet is called. On CUDA, where a step runs by itself once
it is launched, the tokens of one step are turned into text and handed out while the next one runs.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

import torch

from backend.device import pick
from backend.engine import Footprint, Outlet
from backend.llama.books import Books
from backend.llama.job import Answer, Job
from backend.llama.load import limits_of, open_runner, pool_key, standing_of
from backend.llama.request import Chunk, Generation
from backend.llama.runner import Runner
from backend.llama.sampling import Choice, Draw, choose
from backend.llama.scheduler import Slice
from backend.worker import Worker
from common import errors, model_folder
from common.sections import Llama as LlamaSettings
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import LLAMA_PAGES

log = logging.getLogger(__name__)

Result = Choice | errors.RequestError | None
"""What a slice came to: a token, an error, or nothing while its prompt goes on."""
Message = tuple[Job, Callable[[], None]]
"""What an outlet is told once the lock is free."""


def load(settings: Settings) -> "LlamaEngine":
    """The engine that `settings` ask for, loaded and warm; raises SettingsError when it cannot be."""
    folder = model_folder.resolve(settings)
    if settings.llama.threads is not None:
        torch.set_num_threads(settings.llama.threads)
    tokenizer = Tokenizer.load(folder)
    engine = LlamaEngine(open_runner(settings, folder, pick(settings)), tokenizer, settings.llama, str(folder))
    engine.start()
    return engine


class LlamaEngine(Worker[Generation, Chunk]):
    """See :class:`backend.engine.Engine`. Call ``start`` once before anything else."""

    work = "step"
    _books: Books

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        settings: LlamaSettings,
        tokenizer_dir: str = "",
        clock: Callable[[], float] = time.monotonic,
        overlaps: bool | None = None,
    ) -> None:
        """`overlaps`: whether tokens are handed out while the next step runs; None is on CUDA only."""
        self.tokenizer = tokenizer
        self.limits = limits_of(runner, tokenizer_dir)
        self._runner = runner
        self._unsaid: list[tuple[Answer, Choice]] = []
        """Tokens in the books whose text is still to be told; one a sequence at the most."""
        self._overlaps = runner.device.type == "cuda" if overlaps is None else overlaps
        idle = Footprint(
            standing=standing_of(runner, settings),
            account=LLAMA_PAGES,
            capacity_bytes=self.limits.pages * self.limits.page_bytes,
            pool_keys=(pool_key(runner, settings),),
        )
        books = Books(self.limits, settings, tokenizer)
        super().__init__("llama", runner.device, books, idle, settings.stall_s, clock)

    def check(self) -> None:
        """Raises ValueError, printing the equation, when pages and sequences do not add up."""
        with self._wake:
            self._books.check()

    def _open(self, request: Generation, outlet: Outlet[Chunk], now_s: float) -> str:
        return self._books.open(request, outlet, now_s)

    def _warm_up(self) -> None:
        self._runner.warm_up()

    def _turn(self) -> None:
        with self._wake:
            now_s = self._clock()
            farewells = [self._end(job, error) for job, error in self._books.unwanted(now_s)]
            step = self._books.plan(now_s)
            draws = [answer.draw for s in step if s.samples and (answer := self._books.answer_of(s))]
            dirty = self._books.take_dirty()
        self._tell_all(farewells)
        self._runner.clear(dirty)
        results = self._compute(step, draws) if step else []
        with self._wake:
            self._progress_s = self._clock()
            self._books.totals["steps"] += bool(step)
            failures = [self._settle(slice_, result) for slice_, result in zip(step, results, strict=True)]
        self._tell_all([message for message in failures if message])
        if not self._overlaps or not step:
            self._say()

    def _compute(self, step: list[Slice], draws: list[Draw]) -> list[Result]:
        """The result of each slice; `draws` belong to those that sample, in order.

        What fails among others is done again alone, so that only those fail that cannot be computed.
        """
        try:
            results = self._attempt(step, draws)
        except Exception as error:
            log.warning("a step of %d sequences failed: %s", len(step), type(error).__name__, exc_info=len(step) == 1)
            self.on_failure(f"a step of {len(step)} sequences, {sum(s.count for s in step)} tokens", error)
            results = [errors.InternalFault("the model failed on this request")] * len(step)
        # Not in the except: its traceback holds the step's tensors.
        self._progress_s = self._clock()
        if len(step) == 1:
            return results
        left = iter(draws)
        own = [[next(left)] if slice_.samples else [] for slice_ in step]
        return [
            self._compute([slice_], draw)[0] if isinstance(result, errors.RequestError) else result
            for slice_, draw, result in zip(step, own, results, strict=True)
        ]

    def _attempt(self, step: list[Slice], draws: list[Draw]) -> list[Result]:
        logits = self._runner.forward(step)
        if self._overlaps:
            self._say()
        choices = iter(choose(logits, draws))
        broken = errors.InternalFault("the model's output for this request is not made of numbers")
        return [(next(choices) or broken) if slice_.samples else None for slice_ in step]

    def _settle(self, slice_: Slice, result: Result) -> Message | None:
        """Enters a slice's result in the books; returns what is to be told of a failure."""
        answer = self._books.answer_of(slice_)
        if answer is None or answer.job.cancelling or answer.finish_reason is not None:
            return None
        if isinstance(result, errors.RequestError):
            return self._end(answer.job, result)
        self._books.advance(slice_, result.token_id if result else None)
        if result is not None:
            answer.job.note_token(self._clock())
            if answer.note(result):
                self._books.retire(answer)
            self._unsaid.append((answer, result))
        return None

    def _say(self) -> None:
        """Turns the newest tokens into text and hands them out."""
        with self._wake:
            unsaid, self._unsaid = self._unsaid, []
            messages = [message for answer, choice in unsaid for message in self._chunk(answer, choice)]
        self._tell_all(messages)

    def _chunk(self, answer: Answer, choice: Choice) -> list[Message]:
        job = answer.job
        if job.id not in self._books.jobs or job.cancelling:
            return []
        try:
            chunk = answer.say(choice)
        except Exception:
            log.exception("a token could not be turned into text")
            return [self._end(job, errors.InternalFault("the answer could not be turned into text"))]
        if answer.is_told:
            self._books.retire(answer)
        put: Message = (job, partial(job.outlet.put, chunk))
        return [put, self._end(job, None)] if job.is_done else [put]

    def _end(self, job: Job, error: errors.RequestError | None) -> Message:
        """Takes a job out of the books; returns its last message."""
        self._books.end(job, error)
        if error:
            return job, partial(job.outlet.fail, error)
        return job, partial(job.outlet.finish, job.statement(self._clock(), self.limits.page_bytes, self._peak_bytes))

    def _abandon(self, error: errors.RequestError) -> None:
        with self._wake:
            jobs = self._books.abandon(error)
            self._unsaid.clear()
        self._tell_all([(job, partial(job.outlet.fail, error)) for job in jobs])

    def _tell_all(self, messages: list[Message]) -> None:
        for job, message in messages:
            self._tell(job.id, message)
