"""One contestant of a campaign: started, sent everything, watched, and asked whether it is empty again."""

import gzip
import json
import os
import re
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.settings import Settings
from common.settings import load as load_settings
from loadtests import record
from loadtests.campaigns import watch
from loadtests.campaigns.campaign import Campaign
from loadtests.campaigns.contestants import OURS, Contestant, Place, contestant
from loadtests.campaigns.process import Process, answers, free_ports
from loadtests.campaigns.watch import Watch

START_S = 240.0
LOCUST_S = 60.0
"""What locust may take beyond the campaign itself."""
WEB_PORT = 8089
OOM_COUNT = re.compile(rb"^vramgate_oom_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)

Card = Callable[[], int | None]


@dataclass(frozen=True)
class Asked:
    """How a campaign is run, beside what its file says."""

    file: Path
    """The campaign."""
    phase_s: float = 0.0
    """Seconds of arrivals per phase instead of its own; 0 keeps them."""
    web: bool = False
    """With locust's page, which stays until the run is over."""


def run(name: str, campaign: Campaign, asked: Asked, folder: Path, model_folder: Path | None) -> None:
    """Measures one contestant; leaves requests, samples and what is to be known of the run in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with walled(campaign, folder) as card:
        ports = tuple(free_ports(4))
        place = Place(folder.resolve(), (ports[0], ports[1], ports[2], ports[3]), model_folder)
        who = contestant(name, campaign, place, os.environ)
        began_s = time.monotonic()
        with Process(who.command, who.environ, folder / "service.log") as service:
            service.wait_for(lambda: answers(place.url + who.ready_path), START_S)
            load_s = time.monotonic() - began_s
            print(f"{name}: ready after {load_s:.1f} s, {campaign.total_s:.0f} s of load", flush=True)
            with Watch(service, place.url, card, folder / "samples.jsonl", campaign.limits.watch_s) as looking:
                begins_unix_s = time.time()
                send(who, place, campaign, asked, folder)
                left_bytes = leaked_bytes(looking, campaign.limits.settle_s) if name == OURS else None
            told = {
                "name": name,
                "says": who.says,
                "load_s": load_s,
                "began_unix_s": begins_unix_s,
                "leaked_bytes": left_bytes,
                "oom_counted": oom_counted(place.url) if name == OURS else None,
                "alive": service.alive,
                "answers_at_the_end": answers(place.url + who.ready_path),
                "phase_s": asked.phase_s,
                "about": record.describe(watch.card_name() or ""),
            }
    write_meta(folder, told, load_settings(who.environ))
    for path in folder.glob("*.jsonl"):
        compress(path)
    shutil.rmtree(folder / "state", ignore_errors=True)


def send(who: Contestant, place: Place, campaign: Campaign, asked: Asked, folder: Path) -> None:
    """Locust, from the first arrival to the last answer."""
    command = [sys.executable, "-m", "locust", "-f", str(Path(__file__).parents[1] / "users" / "locustfile.py")]
    command += ["--host", place.url, "--campaign", str(asked.file), "--phase-s", str(asked.phase_s)]
    command += ["--dialect", who.dialect, "--served-model", who.served_model]
    command += ["--outcomes", str(folder / "requests.jsonl"), "--exit-code-on-error", "0", "--users", "8"]
    command += ["--spawn-rate", "100", "--run-time", f"{campaign.total_s + 10:.0f}s", "--stop-timeout", "5"]
    command += ["--autostart", "--autoquit", "1", "--web-port", str(WEB_PORT)] if asked.web else ["--headless"]
    if asked.web:
        print(f"locust's page: http://127.0.0.1:{WEB_PORT}", flush=True)
    with Process([*command, "--only-summary"], os.environ, folder / "locust.log") as locust:
        locust.wait(campaign.total_s + LOCUST_S)


def leaked_bytes(looking: Watch, settle_s: float) -> int:
    """What the ledger or the engines still hold once nobody is there, after `settle_s` at the most."""
    latest_s = time.monotonic() + settle_s
    while True:
        sample = looking.look()
        left_bytes = sum(
            account["held_bytes"] + account.get("engine_used_bytes", 0) for account in sample.accounts.values()
        )
        if (sample.accounts and not left_bytes and not sample.leases) or time.monotonic() > latest_s:
            return left_bytes if sample.accounts else -1
        time.sleep(0.2)


def oom_counted(url: str) -> int | None:
    """What the service itself has counted; None where it does not answer."""
    try:
        with urllib.request.urlopen(url + "/metrics", timeout=10) as reply:
            return int(sum(float(found) for found in OOM_COUNT.findall(reply.read())))
    except OSError:
        return None


@contextmanager
def walled(campaign: Campaign, folder: Path) -> Iterator[Card]:
    """The driver's bytes in use, while a process of its own holds what of a CUDA card is beyond the campaign's wall."""
    if campaign.wall is None or watch.card_name() is None:
        yield watch.driver()
        return
    command = [sys.executable, "-m", "loadtests.baselines.balloon", "--leave", str(int(campaign.wall))]
    with Process(command, os.environ, folder / "balloon.log") as balloon:
        balloon.wait_for(lambda: "holding" in balloon.tail(), START_S)
        yield watch.driver()


def write_meta(folder: Path, told: dict[str, Any], settings: Settings) -> None:
    """What is to be known of the run, with the settings that were in force and are not the defaults."""
    changed = settings.model_dump(mode="json", exclude_defaults=True, exclude={"state", "server", "triton"})
    text = json.dumps(told | {"settings": changed}, indent=1)
    (folder / "run.json").write_text(text + "\n", encoding="utf-8")


def compress(path: Path) -> None:
    """Replaces a file by its compressed form."""
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()
