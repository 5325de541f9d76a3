"""A whole service, started the way an operator starts it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

VRAMGATE = Path(sys.executable).parent / "vramgate"
UP_S = 240.0
STOP_S = 12.0
CALM_S = 0.05


def free_ports(count: int) -> list[int]:
    """Ports that nobody listened on a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def environ(state_dir: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without its own settings, with `settings` (``llama.max_batch`` -> value)."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VRAMGATE_")}
    ours = {"state.dir": str(state_dir), **settings}
    return kept | {f"VRAMGATE_{key.replace('.', '__').upper()}": value for key, value in ours.items()}


class Running:
    """``vramgate up`` on free ports; its output goes to ``output`` in its state directory."""

    def __init__(self, state_dir: Path, settings: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
        self.port, self.triton_port, grpc_port, metrics_port = free_ports(4)
        self.url = f"http://127.0.0.1:{self.port}"
        self.triton_url = f"http://127.0.0.1:{self.triton_port}"
        self.state_dir = state_dir
        self.environ = environ(
            state_dir,
            {
                "server.port": str(self.port),
                "triton.http_port": str(self.triton_port),
                "triton.grpc_port": str(grpc_port),
                "triton.metrics_port": str(metrics_port),
                **settings,
            },
        )
        state_dir.mkdir(parents=True, exist_ok=True)
        with (state_dir / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [VRAMGATE, "up", *arguments],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()

    @property
    def output(self) -> str:
        """All that was printed so far."""
        return (self.state_dir / "output").read_text(encoding="utf-8")

    def wait_up(self) -> Self:
        """Returns once the banner is printed; fails with the output when that never happens."""
        self.wait_for(lambda: "vramgate is up" in self.output)
        return self

    def wait_for(self, holds: Any, limit_s: float = UP_S) -> None:
        """Returns once ``holds()``; fails with the output when it does not, or when the service has ended."""
        latest_s = time.monotonic() + limit_s
        while not holds():
            assert self.process.poll() is None, f"vramgate ended with {self.process.returncode}:\n{self.output}"
            assert time.monotonic() < latest_s, f"still waiting after {limit_s} s:\n{self.output}"
            time.sleep(CALM_S)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """The exit status after a stop signal."""
        self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path` of the frontend; raises urllib's error for another status than 200."""
        with urllib.request.urlopen(self.url + path, timeout=10) as reply:
            told = json.load(reply)
        assert isinstance(told, dict)
        return told

    def ready(self) -> bool:
        """Whether ``/readyz`` says 200."""
        try:
            return bool(self.get("/readyz")["ready"])
        except OSError:
            return False

    def held_bytes(self) -> int:
        """What all leases hold together; 0 when the service is idle."""
        return sum(account["held_bytes"] for account in self.get("/v1/ledger")["accounts"])

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command line against this service."""
        return subprocess.run(
            [VRAMGATE, *arguments], env=self.environ, capture_output=True, text=True, timeout=60, check=False
        )


def descendants(pid: int) -> list[int]:
    """Every process that comes from `pid`, itself not."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def command_of(pid: int) -> str:
    """The command line of a process; empty when it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
