"""An engine whose memory runs out leaves a report that says what it held, and nothing of what it was asked."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch

from backend.llama.request import Generation
from backend.llama.scheduler import Slice
from backend.service import keep_evidence
from backend.snapshot import Snapshots, Trigger
from backend.watchdog import Look, Watchdog
from common import report
from common.readings import Reading, Readings
from common.report import REPORT, Reason, Report
from common.settings import Settings
from tests.backend.llama_faults import faulty_runner
from tests.backend.llama_kit import engine_of, lease_of, save_model, settings_of, small_config
from tests.backend.llama_kit import start as start_text
from tests.backend.unet_kit import Pointwise, lease, noise, request, running
from tests.backend.unet_kit import Recorder as ImageOutlet

PROMPT = tuple(random.Random(7).choices(range(256), k=30))
TOTAL_BYTES, MARGIN_BYTES = 1000, 90


class Card:
    name = "bench"

    def __init__(self, used_bytes: int) -> None:
        self.used_bytes = used_bytes

    def read(self) -> Reading:
        return Reading(TOTAL_BYTES, TOTAL_BYTES - self.used_bytes, self.used_bytes, 0, "host")


def watchdog_of(card: Card) -> Watchdog:
    readings = Readings(card, lambda: 0.0, 0.2, 5)
    return Watchdog(readings, MARGIN_BYTES, lambda: Look(0, 0.0, 40), lambda: 0, 0.2, lambda: 0.0)


def settings_in(folder: Path) -> Settings:
    return Settings.model_validate({"state": {"dir": folder}, "card": {"device": "cpu"}})


def only_report(folder: Path) -> Report:
    (name,) = report.names(folder / "snapshots")
    return report.read(folder / "snapshots" / name)


def test_a_step_that_runs_out_of_memory_leaves_a_report_and_is_answered_all_the_same(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    save_model(tmp_path, small_config(vocab_size=256))
    faults: list[Exception] = [torch.OutOfMemoryError("tried to allocate 2 GiB")]

    def fail_once(step: Sequence[Slice]) -> None:
        if faults:
            raise faults.pop()

    with engine_of(settings_of(tmp_path), faulty_runner(tmp_path, fail_once)) as engine:
        watchdog = watchdog_of(Card(400))
        watchdog.poll()
        snapshots = keep_evidence(engine, watchdog, settings_in(tmp_path), "boot")
        rescued = start_text(engine, Generation(PROMPT, 8, lease=lease_of("lease-7"))).wait()
        assert rescued.statement is not None
        assert rescued.statement.rung == "reclaim"
        told = only_report(tmp_path)
        assert (told.reason, told.model, told.boot_id) == (Reason.OOM, "llama", "boot")
        assert told.step.startswith("a step of 1 sequences, ")
        assert told.step.endswith("OutOfMemoryError")
        assert told.where[-1].endswith("fail_once")
        assert [entry.id for entry in told.leases] == ["lease-7"]
        assert (told.standing, told.used_bytes) == (engine.footprint().standing, told.leases[0].held_bytes)
        assert (told.headroom_bytes, told.looks[-1].own_bytes) == (600, 40)
        assert snapshots.last_oom_s == told.at_s
        path = tmp_path / "snapshots" / report.names(tmp_path / "snapshots")[0] / REPORT
        assert str(list(PROMPT[:4]))[1:-1] not in " ".join(path.read_text().split())


def test_a_batch_of_tiles_that_runs_out_of_memory_leaves_a_report(tmp_path: Path) -> None:
    network = Pointwise()
    with running(network) as unet:

        def fail(images: torch.Tensor) -> None:
            raise MemoryError

        network.before = fail
        keep_evidence(unet, watchdog_of(Card(400)), settings_in(tmp_path), "boot")
        outlet = ImageOutlet()
        unet.submit(request(noise(64, 64), lease("l1")), outlet)
        assert outlet.wait().error is not None
        told = only_report(tmp_path)
        assert (told.model, told.step) == ("unet", "a batch of 2 tiles: MemoryError")
        assert told.account == "unet.canvas"


def test_an_opening_breaker_leaves_a_report(tmp_path: Path) -> None:
    card = Card(400)
    with running(Pointwise()) as unet:
        watchdog = watchdog_of(card)
        snapshots = keep_evidence(unet, watchdog, settings_in(tmp_path), "boot")
        watchdog.poll()
        card.used_bytes = 980
        watchdog.poll()
        wait_for(snapshots)
        told = only_report(tmp_path)
    assert told.reason is Reason.BREAKER
    assert "headroom 20 bytes" in told.step
    assert snapshots.last_oom_s is None


def wait_for(snapshots: Snapshots) -> None:
    """A demand within the second waits for the snapshot that is being written."""
    assert snapshots.take(Trigger(Reason.DEMAND)) is not None
