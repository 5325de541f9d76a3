"""The Llama engine: one thread that batches, computes, samples and hands out; everyone else only asks.

One turn of the thread: drop what is cancelled or late, plan a step, compute it, hand out the tokens. The lock covers
the books; it is never held while the model computes or an outlet is called. On CUDA, where a step runs by itself once
it is launched, the tokens of one step are turned into text and handed out while the next one runs.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import torch

from backend import allocator
from backend.device import label, pick
from backend.engine import Failed, Footprint, Health, Outlet, unheard
from backend.llama.books import Books
from backend.llama.job import Answer, Job
from backend.llama.load import open_runner
from backend.llama.request import Chunk, Generation
from backend.llama.runner import Runner
from backend.llama.sampling import Choice, Draw, choose
from backend.llama.scheduler import Slice
from common import errors, model_folder
from common.sections import Llama as LlamaSettings
from common.settings import Settings
from common.tokenizer import Tokenizer
from common.wire import LLAMA_PAGES, CancelOutcome, LlamaLimits
from estimator.llama import page_bytes, standing

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


class LlamaEngine:
    """See :class:`backend.engine.Engine`. Call ``start`` once before anything else."""

    model = "llama"

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
        shape, pool, dtype = runner.model.shape, runner.pool, str(runner.pool.dtype).removeprefix("torch.")
        price = standing(shape, dtype, pool.page_tokens, pool.pages, settings.step_tokens, settings.max_batch)
        self._standing = {line.why.partition(":")[0]: line.bytes for line in price.lines}
        self._pool_key = (
            f"llama/{dtype}/{pool.pages}x{pool.page_tokens}/step{settings.step_tokens}/batch{settings.max_batch}"
        )
        self.tokenizer = tokenizer
        self.device = label(runner.device)
        self.limits = LlamaLimits(
            context_tokens=shape.context_tokens,
            vocab_tokens=shape.vocab,
            page_tokens=pool.page_tokens,
            page_bytes=page_bytes(shape, dtype, pool.page_tokens),
            pages=pool.pages,
            tokenizer_dir=tokenizer_dir,
        )
        self.on_failure: Failed = unheard
        self._runner = runner
        self._stall_s = settings.stall_s
        self._clock = clock
        self._wake = threading.Condition()
        self._books = Books(self.limits, settings, tokenizer)
        self._progress_s = clock()
        self._unsaid: list[tuple[Answer, Choice]] = []
        """Tokens in the books whose text is still to be told; one a sequence at the most."""
        self._overlaps = runner.device.type == "cuda" if overlaps is None else overlaps
        self._base_bytes = 0
        """Allocated when nothing runs."""
        self.warm_peak_bytes = 0
        """The allocator's peak once everything was warm; nothing that comes later may exceed it."""
        self._closing = False
        self._warm: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="llama-engine", daemon=True)

    def start(self) -> None:
        """Starts the thread and waits until it has warmed up; raises what went wrong there."""
        self._thread.start()
        self._warm.result()

    def submit(self, request: Generation, outlet: Outlet[Chunk]) -> str:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            if self._closing or not self._thread.is_alive():
                raise errors.NotReady("the engine is closed")
            now_s = self._clock()
            if not self._books.jobs:
                self._progress_s = now_s
                allocator.reset_peak(self._runner.device)
            work_id = self._books.open(request, outlet, now_s)
            self._wake.notify()
        return work_id

    def cancel(self, work_id: str) -> CancelOutcome:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            outcome = self._books.cancel(work_id)
            self._wake.notify()
        return outcome

    def footprint(self) -> Footprint:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            return Footprint(
                standing=self._standing,
                account=LLAMA_PAGES,
                capacity_bytes=self.limits.pages * self.limits.page_bytes,
                used_bytes=self._books.used_bytes,
                unleased_bytes=self._books.unleased_bytes,
                leases=self._books.leases,
                pool_keys=(self._pool_key,),
                totals=dict(self._books.totals),
            )

    def health(self) -> Health:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            if self._closing or not self._thread.is_alive():
                return Health(False, "the engine's thread has ended")
            silent_s = self._clock() - self._progress_s
            if self._books.jobs and silent_s > self._stall_s:
                return Health(False, f"no step for {silent_s:.0f} s with {len(self._books.jobs)} requests in hand")
        return Health(True)

    def reclaim(self) -> int:
        """See :class:`backend.engine.Engine`."""
        return allocator.release_free_segments(self._runner.device)

    def close(self) -> None:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout=self._stall_s)

    def check(self) -> None:
        """Raises ValueError, printing the equation, when pages and sequences do not add up."""
        with self._wake:
            self._books.check()

    def _run(self) -> None:
        """The thread. Whatever a turn raises, the next one happens."""
        try:
            self._runner.warm_up()
            self.warm_peak_bytes = allocator.peak_bytes(self._runner.device)
            self._base_bytes = allocator.read(self._runner.device).allocated_bytes
        except BaseException as error:
            self._warm.set_exception(error)
            return
        self._warm.set_result(None)
        while not self._closing:
            try:
                self._turn()
            except Exception:
                log.exception("a turn of the engine failed; everything in hand is dropped")
                self._abandon(errors.InternalFault("the engine failed and dropped all its work"))
        self._abandon(errors.NotReady("the engine is closing"))

    def _turn(self) -> None:
        with self._wake:
            self._wake.wait_for(lambda: self._books.jobs or self._closing)
            if self._closing:
                return
            now_s = self._clock()
            farewells = [self._end(job, error) for job, error in self._books.unwanted(now_s)]
            step = self._books.plan(now_s)
            draws = [answer.draw for s in step if s.samples and (answer := self._books.answer_of(s))]
            dirty = self._books.take_dirty()
        self._tell(farewells)
        self._runner.clear(dirty)
        results = self._compute(step, draws) if step else []
        with self._wake:
            self._progress_s = self._clock()
            self._books.totals["steps"] += bool(step)
            failures = [self._settle(slice_, result) for slice_, result in zip(step, results, strict=True)]
        self._tell([message for message in failures if message])
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

    @torch.inference_mode()
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
        self._tell(messages)

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
        peak_bytes = max(0, allocator.peak_bytes(self._runner.device) - self._base_bytes)
        return job, partial(job.outlet.finish, job.statement(self._clock(), self.limits.page_bytes, peak_bytes))

    def _abandon(self, error: errors.RequestError) -> None:
        with self._wake:
            jobs = self._books.abandon(error)
            self._unsaid.clear()
        self._tell([(job, partial(job.outlet.fail, error)) for job in jobs])

    def _tell(self, messages: list[Message]) -> None:
        for job, message in messages:
            try:
                message()
            except Exception:
                log.exception("an outlet failed; its request is cancelled")
                self.cancel(job.id)
