"""The model server's processes, as the kernel lists them; the ones here are shells with a stub's command line."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frontend.stubs import Stubs
from frontend.tritonserver import STUB

PREFIX = "vramgate-0123-"
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts what looks like a stub of `model`."""
    started: list[subprocess.Popen[bytes]] = []

    def one(model: str, prefix: str = PREFIX) -> subprocess.Popen[bytes]:
        code = tmp_path / model / "1" / "model.py"
        code.parent.mkdir(parents=True, exist_ok=True)
        code.write_text("while :; do read line; done")
        command = [f"/backends/{STUB}", str(code), f"{prefix}{len(started)}", "1"]
        started.append(subprocess.Popen(command, executable="/bin/sh", stdin=subprocess.PIPE))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def test_the_stubs_of_a_model_are_found_the_oldest_first_and_those_of_others_are_not(start: Start) -> None:
    first, other, stranger = start("llama"), start("unet"), start("llama", "vramgate-4567-")
    time.sleep(0.02)  # a tick of the kernel's clock tells them apart
    second = start("llama")
    found = Stubs(PREFIX).of("llama")
    assert [stub.pid for stub in found] == [first.pid, second.pid]
    assert Stubs(PREFIX).newest("llama") == found[1]
    assert {other.pid, stranger.pid}.isdisjoint(stub.pid for stub in found)
    assert Stubs(PREFIX).newest("nobody") is None


def test_one_that_is_stopped_lives_and_one_that_is_killed_does_not_even_before_it_is_collected(start: Start) -> None:
    process = start("llama")
    stub = Stubs(PREFIX).newest("llama")
    assert stub is not None
    os.kill(process.pid, signal.SIGSTOP)
    assert stub.lives()
    stub.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not stub.lives()
    assert Stubs(PREFIX).of("llama") == ()
    process.wait()
    stub.kill()


def test_a_later_process_with_the_same_id_is_another_one(start: Start) -> None:
    process = start("llama")
    stub = Stubs(PREFIX).newest("llama")
    assert stub is not None
    reused = type(stub)(stub.began_ticks - 1, stub.pid)
    assert not reused.lives()
    reused.kill()
    assert process.poll() is None
