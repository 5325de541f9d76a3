"""Snapshots of the running service, taken and read the way an operator does."""

from pathlib import Path

from common import report
from common.report import Reason
from tests.integration.running import Running


def test_a_snapshot_of_the_running_service_is_taken_listed_and_shown(service: Running) -> None:
    taken = service.run("snapshots", "take")
    assert taken.returncode == 0, taken.stderr
    paths = [Path(line) for line in taken.stdout.split()]
    models = set()
    for path in paths:
        told = report.read(path)
        models.add(told.model)
        assert path.parent == service.state_dir / "snapshots"
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert told.reason is Reason.DEMAND
        assert told.standing
        assert told.looks
        assert told.headroom_bytes is not None
    assert models == {"llama", "unet"}
    listed = service.run("snapshots", "list").stdout
    for path in paths:
        assert path.name in listed
        shown = service.run("snapshots", "show", path.name)
        assert shown.returncode == 0, shown.stderr
        assert "weights" in shown.stdout
        assert "headroom, last " in shown.stdout
        assert "probable cause: " in shown.stdout


def test_a_snapshot_disturbs_nobody(service: Running) -> None:
    assert service.run("snapshots", "take", "--model", "llama").returncode == 0
    assert service.ready()
    assert service.held_bytes() == 0
