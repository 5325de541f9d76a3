"""Faults of processes: killed, stopped, and a storm of snapshots; the card plays no part in them."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from loadtests.chaos.load import Answer, Load, tally
from loadtests.chaos.service import Service

BACK_S = 180.0
"""Longest that a model may take to come back."""
AFTER_S = 3.0
STOP_S = 20.0
STORM = 1000
STORM_S = 60.0
OTHER = {"llama": "unet", "unet": "llama"}

Row = dict[str, Any]


def kill_stub(service: Service, model: str) -> Row:
    """kill -9 of a model's process, both models busy."""
    load, server = Load(service.url), service.server()
    reruns, since_s = service.count("vramgate_reruns_total"), 0.0

    async def run() -> None:
        nonlocal since_s
        async with load.running():
            since_s = time.monotonic()
            os.kill(service.stub(model), signal.SIGKILL)
            await load.until_good(model, since_s, BACK_S)
            await asyncio.sleep(AFTER_S)

    asyncio.run(run())
    took_server_along = not _lives(server)
    load_s = service.loads_s(model)[-1]
    if took_server_along:  # then both are loaded anew, one after the other
        load_s += service.loads_s(OTHER[model])[-1]
    first_good_s = load.first_good_s(model, since_s)
    return summary(service, load, since_s, model) | {
        "took_server_along": int(took_server_along),
        "first_good_s": first_good_s,
        "load_s": load_s,
        "beyond_load_s": first_good_s - load_s,
        "reruns": service.count("vramgate_reruns_total") - reruns,
    }


def stop_stub(service: Service, model: str, deadline_s: float = 10.0) -> Row:
    """SIGSTOP of a model's process for 20 s, both models busy."""
    load, server = Load(service.url, deadline_s=deadline_s), service.server()
    since_s = woken_s = 0.0

    async def run() -> None:
        nonlocal since_s, woken_s
        async with load.running():
            since_s = time.monotonic()
            pid = service.stub(model)
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(STOP_S)
            woken_s = time.monotonic()
            if _lives(pid):
                os.kill(pid, signal.SIGCONT)
            await load.until_good(model, woken_s, BACK_S)
            await asyncio.sleep(AFTER_S)

    asyncio.run(run())
    waits_s = [answer.seconds - deadline_s for answer in load.of(model, since_s)]
    return summary(service, load, since_s, model) | {
        "took_server_along": int(not _lives(server)),
        "late_s": max(0.0, *waits_s),
        "first_good_after_wake_s": load.first_good_s(model, woken_s),
    }


def kill_server(service: Service) -> Row:
    """kill -9 of the model server, both models busy."""
    load, since_s = Load(service.url), 0.0

    async def run() -> None:
        nonlocal since_s
        async with load.running():
            since_s = time.monotonic()
            os.kill(service.server(), signal.SIGKILL)
            await asyncio.gather(*(load.until_good(model, since_s, BACK_S) for model in OTHER))
            await asyncio.sleep(AFTER_S)

    asyncio.run(run())
    asked_after = [answer for answer in load.answers if answer.began_s > since_s and answer.status == 503]
    load_s = sum(service.loads_s(model)[-1] for model in OTHER)
    first_good_s = max(load.first_good_s(model, since_s) for model in OTHER)
    return summary(service, load, since_s, None) | {
        "refusals": len(asked_after),
        "refusal_max_s": max((answer.seconds for answer in asked_after), default=float("nan")),
        "refusal_median_s": _median([answer.seconds for answer in asked_after]),
        "first_good_s": first_good_s,
        "load_s": load_s,
        "beyond_load_s": first_good_s - load_s,
    }


def snapshot_storm(service: Service) -> Row:
    """A thousand snapshots asked for within a minute."""
    folder = service.state_dir / "snapshots"
    seen: set[str] = set()
    longest_s, most_bytes, began_s = 0.0, 0, time.monotonic()
    for number in range(STORM):
        time.sleep(max(0.0, began_s + number * STORM_S / STORM - time.monotonic()))
        asked_s = time.monotonic()
        service.control("llama", "snapshot")
        longest_s = max(longest_s, time.monotonic() - asked_s)
        found = list(folder.iterdir())
        seen |= {path.name for path in found if not path.name.startswith(".")}
        most_bytes = max(most_bytes, sum(_size(path) for path in found))
    took_s = time.monotonic() - began_s
    return {
        "asked": STORM,
        "took_s": took_s,
        "written": len(seen),
        "written_per_s": len(seen) / took_s,
        "most_bytes": most_bytes,
        "longest_answer_s": longest_s,
    }


FAULTS: dict[str, Callable[[Service], Row]] = {
    "kill_llama": lambda service: kill_stub(service, "llama"),
    "kill_unet": lambda service: kill_stub(service, "unet"),
    "stop_llama": lambda service: stop_stub(service, "llama"),
    "stop_unet": lambda service: stop_stub(service, "unet"),
    "kill_server": kill_server,
    "storm": snapshot_storm,
}
"""Name -> what is done; each leaves the service as it found it."""


def summary(service: Service, load: Load, since_s: float, model: str | None) -> Row:
    """What is told of every fault; with a `model` the other one should not have noticed it."""
    after = [answer for answer in load.answers if answer.ended_s > since_s]
    good = [answer for answer in after if answer.status == 200]
    row: Row = {
        "hung": sum(answer.hung for answer in after),
        "wrong": sum(not answer.right for answer in good),
        "statuses": {name: tally(_only(after, name)) for name in OTHER},
    }
    if model is not None:
        row["lost_other"] = sum(answer.status != 200 for answer in _only(after, OTHER[model]))
        row["lost_own"] = sum(answer.status != 200 for answer in _only(after, model))
    service.wait_for(service.is_ready, BACK_S)
    return row | {"ledger_exact": int(_becomes_exact(service))}


def _becomes_exact(service: Service) -> bool:
    try:
        service.wait_for(service.is_exact, 15.0)
    except RuntimeError:
        return False
    return True


def _only(answers: list[Answer], model: str) -> list[Answer]:
    return [answer for answer in answers if answer.model == model]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else float("nan")


def _size(folder: Any) -> int:
    try:
        return sum(file.stat().st_size for file in folder.iterdir())
    except OSError:  # it was removed a moment ago
        return 0
