import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from frontend.child import Child

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def eventually_gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return gone(pid)


async def start(code: str, log: Path | None = None) -> Child:
    return await Child.start("test", [sys.executable, "-c", code], os.environ, log)


def wait_for_text(file: Path) -> str:
    deadline = time.monotonic() + 10
    while not (file.exists() and file.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return file.read_text()


def test_what_it_prints_lands_in_the_log(tmp_path: Path) -> None:
    async def run() -> int:
        return await (await start("print('hello')", tmp_path / "log")).wait()

    assert asyncio.run(run()) == 0
    assert (tmp_path / "log").read_text() == "hello\n"


def test_a_process_that_ignores_the_stop_signal_is_killed(tmp_path: Path) -> None:
    async def run() -> tuple[int, int]:
        child = await start(STUBBORN, tmp_path / "log")
        await asyncio.to_thread(wait_for_text, tmp_path / "log")
        await child.stop(0.1)
        return child.pid, await child.wait()

    pid, status = asyncio.run(run())
    assert status == -signal.SIGKILL
    assert gone(pid)


def test_grandchildren_end_with_their_group(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid, flush=True)"
    )

    async def run() -> int:
        child = await start(code, tmp_path / "log")
        await child.wait()
        grandchild = int(wait_for_text(tmp_path / "log"))
        assert not gone(grandchild)
        await child.stop(1)
        return grandchild

    assert gone(asyncio.run(run()))


def test_it_has_a_group_of_its_own_so_the_terminal_does_not_stop_it() -> None:
    async def run() -> int:
        child = await start("import time; time.sleep(60)")
        group = os.getpgid(child.pid)
        await child.stop(5)
        return group - child.pid

    assert asyncio.run(run()) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_it_does_not_outlive_a_parent_that_is_killed() -> None:
    code = (
        "import asyncio, os, sys\n"
        "from frontend.child import Child\n"
        "async def main():\n"
        "    child = await Child.start('c', [sys.executable, '-c', 'import time; time.sleep(60)'], os.environ)\n"
        "    print(child.pid, flush=True)\n"
        "    await child.wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
    assert eventually_gone(pid)
