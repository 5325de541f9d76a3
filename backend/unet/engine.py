"""The UNet engine: one thread that cuts, computes, blends and hands out; everyone else only asks.

One turn of the thread: drop what is cancelled, late or broken; start what has a canvas; compute one batch of tiles,
taken in turn from all running requests; hand out what is complete. Images are decoded by threads of their own. The lock
covers the books; it is never held while tiles are computed or an outlet is called.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from backend import allocator
from backend.device import pick
from backend.engine import Footprint, Health, Outlet
from backend.unet.books import Books
from backend.unet.canary import Canary
from backend.unet.canvas import StripPool
from backend.unet.decoders import Decoded, Decoders
from backend.unet.job import Job
from backend.unet.load import limits_of, open_runner, pool_key, standing_of
from backend.unet.rehearsal import Rehearsal
from backend.unet.request import Mask, Segmentation
from backend.unet.runner import TileRunner
from backend.unet.tiles import cut
from backend.worker import Worker
from common import errors
from common.sections import Unet as UnetSettings
from common.settings import Settings
from common.wire import UNET_CANVAS, Statement
from estimator.unet import canvas_bytes

log = logging.getLogger(__name__)

FAILED_PASSES = 3
"""Forward passes that fail one after the other until the engine calls itself unready."""

Picks = list[tuple[Job, int]]
"""Jobs and their tiles, in the order of the batch's slots."""


def load(settings: Settings) -> "UnetEngine":
    """The engine that `settings` ask for, loaded and warm; raises SettingsError when it cannot be."""
    device = pick(settings)
    if settings.unet.threads is not None:
        torch.set_num_threads(settings.unet.threads)
    engine = UnetEngine(open_runner(settings, device), settings.unet)
    engine.start()
    return engine


class UnetEngine(Worker[Segmentation, Mask]):
    """See :class:`backend.engine.Engine`. Call ``start`` once before anything else."""

    work = "tile"
    _books: Books

    def __init__(self, runner: TileRunner, settings: UnetSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits = limits_of(runner, settings)
        self._runner = runner
        self._decoders = Decoders()
        self._failed_passes = 0
        pool = StripPool(limits, runner.device)
        host_pool = pool if runner.device.type == "cpu" else StripPool(limits, torch.device("cpu"))
        idle = Footprint(
            standing=standing_of(runner, limits),
            account=UNET_CANVAS,
            capacity_bytes=limits.canvas_bytes,
            pool_keys=(pool_key(runner),),
        )
        books = Books(limits, pool, host_pool, settings.max_waiting)
        super().__init__("unet", runner.device, books, idle, settings.stall_s, clock)

    def health(self) -> Health:
        """See :class:`backend.engine.Engine`."""
        health = super().health()
        if health.ready and self._failed_passes >= FAILED_PASSES:
            return Health(False, f"the last {self._failed_passes} forward passes failed")
        return health

    def close(self) -> None:
        """See :class:`backend.engine.Engine`."""
        super().close()
        self._decoders.close()

    def _open(self, request: Segmentation, outlet: Outlet[Mask], now_s: float) -> str:
        job = self._books.open(request, outlet, now_s)
        if request.encoded is None:
            job.image = request.image
            self._books.ready(job)
        else:
            job.decoding = self._decoders.submit(request, partial(self._decoded, job))
        return job.id

    def _turn(self) -> None:
        with self._wake:
            unwanted = self._books.unwanted(self._clock())
        for job, error in unwanted:
            self._end(job, error)
        self._start_jobs()
        with self._wake:
            picks = self._books.pick(self._runner.tile_batch)
        self._compute(picks)
        self._progress_s = self._clock()

    def _start_jobs(self) -> None:
        while True:
            with self._wake:
                job = self._books.next_to_start()
            if job is None:
                return
            try:
                job.start(self.limits.classes, self._clock())
            except Exception as error:
                log.exception("a request of %d x %d pixels could not be started", job.request.width, job.request.height)
                self.on_failure(f"the start of {job.request.width} x {job.request.height} pixels", error)
                self._end(job, errors.InternalFault("there was no room for the answer"))

    def _compute(self, picks: Picks) -> None:
        """One batch. When it fails it is done again job by job, so that only those fail that cannot be computed."""
        logits = self._forward(picks) if picks else None
        if logits is not None:
            for (job, tile), its_logits in zip(picks, logits, strict=True):
                self._take(job, tile, its_logits)
            return
        jobs = list(dict.fromkeys(job for job, _ in picks))
        for job in jobs:
            if len(jobs) == 1:
                self._end(job, errors.InternalFault("the model failed on this image"))
            else:
                self._compute([(owner, tile) for owner, tile in picks if owner is job])

    def _forward(self, picks: Picks) -> Tensor | None:
        """Logits of the tiles; None when the pass failed, what is left of it then freed."""
        try:
            for slot, (job, tile) in zip(self._runner.slots(), picks, strict=False):
                assert job.image is not None
                cut(job.image, job.grid, tile, slot)
            logits = self._runner.run(len(picks))
        except Exception as error:
            log.warning("a batch of %d tiles failed: %s", len(picks), type(error).__name__, exc_info=True)
            self.on_failure(f"a batch of {len(picks)} tiles", error)
        else:
            self._failed_passes = 0
            return logits
        # Not in the except: its traceback holds the tensors of the pass.
        self._failed_passes += 1
        self._progress_s = self._clock()
        allocator.release_free_segments(self._runner.device)
        return None

    def _take(self, job: Job, tile: int, logits: Tensor) -> None:
        if job.ended:
            return
        try:
            job.take(tile, logits)
        except Exception:
            log.exception("tile %d of %d could not be taken in", tile, job.grid.tiles)
            self._end(job, errors.InternalFault("the answer could not be put together"))
        else:
            if job.is_complete:
                self._end(job, None)

    def _end(self, job: Job, error: errors.RequestError | None) -> None:
        """Takes a job out of the books, then tells its outlet; the work on the device has ended by then."""
        error = error if self._runner.synchronize() else errors.InternalFault("the device failed")
        statement = job.statement(self._clock(), self._peak_bytes)
        with self._wake:
            self._books.end(job, error)
        if error is not None:
            self._tell(job.id, partial(job.outlet.fail, error))
        else:
            assert job.answer is not None
            self._tell(job.id, partial(_answer, job.outlet, job.answer.mask(), statement))

    def _abandon(self, error: errors.RequestError) -> None:
        with self._wake:
            jobs = list(self._books.jobs.values())
        for job in jobs:
            self._end(job, error)

    def _decoded(self, job: Job, decoded: Decoded) -> None:
        """Called by a decoder's thread."""
        with self._wake:
            if not job.ended:
                job.image, job.failure, job.decode_s = decoded.image, decoded.failure, decoded.seconds
                job.request = replace(job.request, encoded=None)
                self._books.ready(job)
                self._wake.notify()

    def _warm_up(self) -> Canary:
        """Every shape of the network, then one image that needs a canvas, on the way that requests go."""
        self._runner.warm_up()
        rehearsal = Rehearsal(self.limits, in_full=self._runner.device.type == "cuda")
        image = rehearsal.request
        if canvas_bytes(image.height, image.width, self.limits) <= self.limits.canvas_bytes:
            self.submit(image, rehearsal)
            while self._books.jobs:
                self._turn()
            if rehearsal.error is not None:
                raise rehearsal.error
            self._books.totals.clear()
        return Canary(self._runner)


def _answer(outlet: Outlet[Mask], mask: Mask, statement: Statement) -> None:
    outlet.put(mask)
    outlet.finish(statement)
