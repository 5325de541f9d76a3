"""The UNet engine: one thread that cuts, computes, blends and hands out; everyone else only asks.

One turn of the thread: drop what is cancelled, late or broken; start what has a canvas; compute one batch of tiles,
taken in turn from all running requests; hand out what is complete. Images are decoded by threads of their own. The lock
covers the books; it is never held while tiles are computed or an outlet is called.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from backend import allocator
from backend.device import label, pick
from backend.engine import Failed, Footprint, Health, Outlet, unheard
from backend.unet.books import Books
from backend.unet.canvas import StripPool
from backend.unet.decoders import Decoded, Decoders
from backend.unet.job import Job
from backend.unet.load import limits_of, open_runner, standing_of
from backend.unet.rehearsal import Rehearsal
from backend.unet.request import Mask, Segmentation
from backend.unet.runner import TileRunner
from backend.unet.tiles import cut
from common import errors
from common.sections import Unet as UnetSettings
from common.settings import Settings
from common.wire import UNET_CANVAS, CancelOutcome
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


class UnetEngine:
    """See :class:`backend.engine.Engine`. Call ``start`` once before anything else."""

    model = "unet"

    def __init__(self, runner: TileRunner, settings: UnetSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.device = label(runner.device)
        self.limits = limits = limits_of(runner, settings)
        dtype = str(runner.dtype).removeprefix("torch.")
        network = runner.network
        self._pool_key = (
            f"unet/{dtype}/width{network.width}/{network.classes}/tile{runner.tile_pixels}/batch{runner.tile_batch}"
        )
        self.on_failure: Failed = unheard
        self._standing = standing_of(runner, limits)
        self._runner = runner
        self._stall_s = settings.stall_s
        self._clock = clock
        pool = StripPool(limits, runner.device)
        host_pool = pool if runner.device.type == "cpu" else StripPool(limits, torch.device("cpu"))
        self._wake = threading.Condition()
        self._books = Books(limits, pool, host_pool, settings.max_waiting)
        self._decoders = Decoders()
        self._progress_s = clock()
        self._failed_passes = 0
        self._base_bytes = 0
        """Allocated when nothing runs."""
        self._closing = False
        self._warm: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="unet-engine", daemon=True)

    def start(self) -> None:
        """Starts the thread and waits until it has warmed up; raises what went wrong there."""
        self._thread.start()
        self._warm.result()

    def submit(self, request: Segmentation, outlet: Outlet[Mask]) -> str:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            if self._closing or not self._thread.is_alive():
                raise errors.NotReady("the engine is closed")
            now_s = self._clock()
            if not self._books.jobs:
                self._progress_s = now_s
                allocator.reset_peak(self._runner.device)
            job = self._books.open(request, outlet, now_s)
            if request.encoded is None:
                job.image = request.image
                self._books.ready(job)
                self._wake.notify()
            else:
                job.decoding = self._decoders.submit(request, partial(self._decoded, job))
        return job.id

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
                account=UNET_CANVAS,
                capacity_bytes=self.limits.canvas_bytes,
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
            if self._books.has_work and silent_s > self._stall_s:
                return Health(False, f"no tile for {silent_s:.0f} s with {len(self._books.jobs)} requests in hand")
            if self._failed_passes >= FAILED_PASSES:
                return Health(False, f"the last {self._failed_passes} forward passes failed")
        return Health(True)

    def reclaim(self) -> int:
        """See :class:`backend.engine.Engine`."""
        return allocator.release_free_segments(self._runner.device)

    def close(self) -> None:
        """See :class:`backend.engine.Engine`."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._decoders.close()

    def _run(self) -> None:
        """The thread. Whatever a turn raises, the next one happens."""
        try:
            self._warm_up()
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

    @torch.inference_mode()
    def _turn(self) -> None:
        with self._wake:
            self._wake.wait_for(lambda: self._books.has_work or self._closing)
            if self._closing:
                return
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
        peak_bytes = max(0, allocator.peak_bytes(self._runner.device) - self._base_bytes)
        statement = job.statement(self._clock(), peak_bytes)
        with self._wake:
            self._books.end(job, error)
        try:
            if error is not None:
                job.outlet.fail(error)
            else:
                assert job.answer is not None
                job.outlet.put(job.answer.mask())
                job.outlet.finish(statement)
        except Exception:
            log.exception("an outlet failed; nobody hears of this request's end")

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

    def _warm_up(self) -> None:
        """Every shape of the network, then one image that needs a canvas, on the way that requests go."""
        self._runner.warm_up()
        rehearsal = Rehearsal(self.limits.tile_pixels)
        image = rehearsal.request
        if canvas_bytes(image.height, image.width, self.limits) <= self.limits.canvas_bytes:
            self.submit(image, rehearsal)
            while self._books.jobs:
                self._turn()
            if rehearsal.error is not None:
                raise rehearsal.error
            self._books.totals.clear()
        self._base_bytes = allocator.read(self._runner.device).allocated_bytes
