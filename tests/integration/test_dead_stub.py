"""A model's process dies, or hangs, under a server that lives."""

import json
import os
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from frontend import tritonserver
from tests.integration.conftest import SMALL
from tests.integration.running import Running, command_of, descendants

Start = Callable[..., Running]


def stubs_of(running: Running, model: str) -> list[int]:
    """The processes that run `model`; the shells that started them are not among them."""
    commands = {pid: command_of(pid) for pid in descendants(running.process.pid)}
    return [pid for pid, command in commands.items() if tritonserver.STUB in command and f"/{model}/" in command]


def stub_of(running: Running, model: str) -> int:
    """The only process that runs `model`."""
    (pid,) = stubs_of(running, model)
    return pid


def answers(running: Running, model: str) -> bool:
    """Whether the model answers a client of the server itself."""
    body = json.dumps({"control": '{"op": "status"}'}).encode()
    request = urllib.request.Request(f"{running.triton_url}/v2/models/{model}/generate", body)
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            return "boot_id" in reply.read().decode()
    except OSError:
        return False


def reason(running: Running, model: str) -> str:
    """Why the model is not ready, as ``/readyz`` tells it; empty while it is."""
    try:
        return str(running.get("/readyz")["reasons"].get(model, ""))
    except urllib.error.HTTPError as error:
        return str(json.load(error)["reasons"].get(model, ""))


def server_of(running: Running) -> int:
    """The model server."""
    commands = {pid: command_of(pid) for pid in descendants(running.process.pid)}
    (pid,) = [pid for pid, command in commands.items() if "--model-control-mode=explicit" in command]
    return pid


def complete(running: Running, max_tokens: int, timeout_s: str = "30") -> int:
    """The HTTP status of a text request."""
    body = json.dumps({"model": "llama", "prompt": "Once upon a time", "max_tokens": max_tokens}).encode()
    request = urllib.request.Request(
        f"{running.url}/v1/completions", body, {"Content-Type": "application/json", "X-Request-Timeout": timeout_s}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def restarts(running: Running, model: str) -> float:
    """Tries to bring the model back."""
    return counted(running, "vramgate_engine_restarts_total", model)


def counted(running: Running, counter: str, model: str) -> float:
    """A counter of the model, as Prometheus is told."""
    with urllib.request.urlopen(running.url + "/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    sample = f'{counter}{{model="{model}"}} '
    return sum(float(line.removeprefix(sample)) for line in lines if line.startswith(sample))


def test_a_killed_process_comes_back_by_itself_and_the_other_model_answers_throughout(start: Start) -> None:
    running = start().wait_up()
    old = stub_of(running, "llama")
    os.kill(old, signal.SIGKILL)
    running.wait_for(lambda: not running.ready(), 30)
    heard: list[bool] = []

    def is_back() -> bool:
        heard.append(answers(running, "unet"))
        return running.ready()

    running.wait_for(is_back, 60)
    assert all(heard)
    assert stub_of(running, "llama") != old
    assert answers(running, "llama")
    assert running.held_bytes() == 0
    assert (restarts(running, "llama"), restarts(running, "unet")) == (1, 0)


def test_work_of_a_killed_process_is_done_by_the_next_one(tmp_path: Path) -> None:
    """However it comes back: the server itself may end when a process dies in the middle of a stream."""
    with Running(tmp_path / "state", SMALL) as running, ThreadPoolExecutor() as clients:
        running.wait_up()
        works = [clients.submit(complete, running, 60, "100") for _ in range(3)]
        running.wait_for(lambda: running.held_bytes() > 0, 30)
        os.kill(stub_of(running, "llama"), signal.SIGKILL)
        assert {work.result(120) for work in works} == {200}
        assert counted(running, "vramgate_reruns_total", "llama") == 3
        running.wait_for(lambda: running.held_bytes() == 0, 10)


def test_a_model_that_cannot_be_loaded_is_tried_again(start: Start, toys: Path, tmp_path: Path) -> None:
    repository = tmp_path / "broken"
    shutil.copytree(toys, repository)
    running = start(triton__model_repository=str(repository)).wait_up()
    code = repository / "llama" / "1" / "model.py"
    good = code.read_text()
    code.write_text("raise RuntimeError('no luck')")
    os.kill(stub_of(running, "llama"), signal.SIGKILL)
    running.wait_for(lambda: "restarting, try 2 in" in reason(running, "llama"), 30)
    assert "its process is gone" in reason(running, "llama")
    code.write_text(good)
    running.wait_for(running.ready, 60)
    assert restarts(running, "llama") >= 2


def test_a_process_that_hangs_for_long_is_killed_and_replaced(start: Start) -> None:
    running = start(keeper__patience_s="5").wait_up()
    old = stub_of(running, "unet")
    os.kill(old, signal.SIGSTOP)
    running.wait_for(lambda: not running.ready(), 30)
    running.wait_for(running.ready, 90)
    assert restarts(running, "unet") == 1
    assert command_of(old) == ""
    assert stub_of(running, "unet") != old


def test_a_process_that_stops_for_a_while_costs_its_clients_no_more_than_their_deadline(tmp_path: Path) -> None:
    """Whether it goes on or ends when it wakes: stopped in the middle of a message, it may take the server along."""
    with Running(tmp_path / "state", SMALL) as running, ThreadPoolExecutor() as clients:
        running.wait_up()
        work = clients.submit(complete, running, 500, "3")
        running.wait_for(lambda: running.held_bytes() > 0, 30)
        old = stub_of(running, "llama")
        os.kill(old, signal.SIGSTOP)
        assert work.result(30) == 504
        assert running.held_bytes() > 0, "the work has not ended, so its lease has not"
        os.kill(old, signal.SIGCONT)
        running.wait_for(lambda: running.ready() and running.held_bytes() == 0, 120)
        running.wait_for(lambda: complete(running, 4) == 200, 60)


def test_a_model_server_that_hangs_is_replaced_and_a_killed_one_is_said_at_once(start: Start) -> None:
    running = start(keeper__patience_s="5").wait_up()
    server = server_of(running)
    os.kill(server, signal.SIGSTOP)
    running.wait_for(lambda: not running.ready(), 30)
    running.wait_for(running.ready, 90)
    assert command_of(server) == ""
    os.kill(server_of(running), signal.SIGKILL)
    running.wait_for(lambda: "cannot be reached" in reason(running, "unet"), 10)
    assert complete(running, 4) == 503
    running.wait_for(running.ready, 90)
