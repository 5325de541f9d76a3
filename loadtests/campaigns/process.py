"""A process of a campaign with all that come from it: started, watched, ended."""

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Self

from common.errors import SettingsError
from common.readings import resident_bytes

STOP_S = 20.0
CALM_S = 0.1


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Process:
    """A child and its own children, in a session of their own; what they print goes into a file."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._child = subprocess.Popen(
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether the child itself still runs."""
        return self._child.poll() is None

    def wait_for(self, holds: Callable[[], bool], limit_s: float) -> None:
        """Returns once ``holds()``; raises SettingsError with the end of the log when that never happens."""
        latest_s = time.monotonic() + limit_s
        while not holds():
            if not self.alive or time.monotonic() > latest_s:
                state = "still not ready" if self.alive else f"ended with {self._child.returncode}"
                raise SettingsError(f"{self.log.stem} is {state}:\n{self.tail()}")
            time.sleep(CALM_S)

    def tail(self, characters: int = 3000) -> str:
        """The end of what was printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-characters:]

    def wait(self, limit_s: float) -> int:
        """The exit status; raises SettingsError when the child is still there after so long."""
        try:
            return self._child.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise SettingsError(f"{self.log.stem} did not end in {limit_s:.0f} s:\n{self.tail()}") from None

    def stop(self) -> None:
        """Asks the child to end, then ends whatever of its session is left."""
        if self.alive:
            self._child.send_signal(signal.SIGINT)
            try:
                self._child.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def resident(self) -> dict[str, int]:
        """Role -> resident bytes of the child and everything that comes from it."""
        found: dict[str, int] = {}
        for pid in (self._child.pid, *descendants(self._child.pid)):
            if size_bytes := resident_bytes(pid):
                role = role_of(pid)
                found[role] = found.get(role, 0) + size_bytes
        return found


def descendants(pid: int) -> list[int]:
    """Every process that comes from `pid`, itself not."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def role_of(pid: int) -> str:
    """What a process is to a reader of a plot, by its command line."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "gone"
    line = " ".join(command)
    if "triton_python_backend_stub" in line:
        return next((f"{model} engine" for model in ("llama", "unet") if f"/{model}/" in line), "stub")
    if "tritonserver" in command[0]:
        return "tritonserver"
    if "-c" in command:
        return "launcher"
    modules = [after for option, after in pairwise(command) if option == "-m"]
    return modules[0].rpartition(".")[2] if modules else Path(command[0]).name


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
