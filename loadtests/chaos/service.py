"""A service of our own, started the way an operator starts it, with its processes in reach."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Self

UP = (sys.executable, "-c", "from frontend.cli import main; main()", "up")
UP_S = 600.0
STOP_S = 20.0
LOOK_S = 0.05
STUB = "triton_python_backend_stub"
LOADING = re.compile(r"^(\S+)Z .*\"(?:loading: (\w+):1|successfully loaded '(\w+)')\"$", re.MULTILINE)
"""What the model server logs when a model's process is started, and when it is ready for work."""


class Service:
    """``vramgate up`` on free ports, with `settings` (``llama.pages`` -> value)."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="vramgate-chaos-", ignore_cleanup_errors=True)
        self.state_dir = Path(self._folder.name) / "state"
        self.state_dir.mkdir()
        port, triton_port, grpc_port, metrics_port = _free_ports(4)
        self.url, self.triton_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{triton_port}"
        ours = {
            "state.dir": str(self.state_dir),
            "server.port": str(port),
            "triton.http_port": str(triton_port),
            "triton.grpc_port": str(grpc_port),
            "triton.metrics_port": str(metrics_port),
            "log.level": "info",
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith("VRAMGATE_")}
        named = {f"VRAMGATE_{key.replace('.', '__').upper()}": value for key, value in (ours | dict(settings)).items()}
        with (self.state_dir / "output").open("wb") as output:
            self._process = subprocess.Popen(
                UP, env=kept | named, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def __enter__(self) -> Self:
        self.wait_for(self.is_ready, UP_S)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(STOP_S)
        self._folder.cleanup()

    def wait_for(self, holds: Callable[[], bool], limit_s: float) -> float:
        """Seconds until it held; raises RuntimeError with the service's output when it does not in time."""
        began_s = time.monotonic()
        while not holds():
            if time.monotonic() - began_s > limit_s or self._process.poll() is not None:
                output = (self.state_dir / "output").read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"waited {limit_s:g} s in vain; the service said:\n{output[-4000:]}")
            time.sleep(LOOK_S)
        return time.monotonic() - began_s

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`; raises OSError for another status than 200."""
        with urllib.request.urlopen(self.url + path, timeout=10) as reply:
            return dict(json.load(reply))

    def is_ready(self) -> bool:
        """Whether every engine takes work."""
        try:
            return bool(self.get("/readyz")["ready"])
        except OSError:
            return False

    def is_exact(self) -> bool:
        """Whether an idle service's books say that nothing is held, leased or not, and agree with the engines."""
        accounts = self.get("/v1/ledger")["accounts"]
        return all(account["held_bytes"] == account["unleased_bytes"] == 0 for account in accounts) and all(
            not account["drift_bytes"] for account in accounts
        )

    def count(self, sample: str) -> float:
        """The sum of the Prometheus samples whose line begins with `sample`."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample))

    def loads_s(self, model: str) -> list[float]:
        """How long each load of the model took, its process's own start included, in whole seconds of the log."""
        logs = sorted(self.state_dir.glob("tritonserver.log*"), reverse=True)
        text = "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
        began, took_s = None, []
        for when, loading, loaded in LOADING.findall(text):
            if loading == model:
                began = datetime.fromisoformat(when)
            elif loaded == model and began is not None:
                took_s.append((datetime.fromisoformat(when) - began).total_seconds())
        return took_s

    def stub(self, model: str) -> int:
        """Process id of the newest process that runs the model."""
        return max(pid for pid, words in self._descendants() if STUB in words[0] and f"/{model}/" in words[1])

    def server(self) -> int:
        """Process id of the model server."""
        return next(pid for pid, words in self._descendants() if "--model-control-mode=explicit" in words)

    def control(self, model: str, op: str) -> dict[str, Any]:
        """An engine's answer to a control message, asked of the model server itself."""
        body = json.dumps({"control": json.dumps({"op": op})}).encode()
        request = urllib.request.Request(f"{self.triton_url}/v2/models/{model}/generate", body)
        with urllib.request.urlopen(request, timeout=10) as reply:
            return dict(json.loads(json.load(reply)["control"]))

    def _descendants(self) -> list[tuple[int, list[str]]]:
        """Process id and command line of everything that comes from the launcher."""
        parents, words = {}, {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                pid = int(entry.name)
                parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                words[pid] = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
        found = [self._process.pid]
        for one in found:
            found += [pid for pid, parent in parents.items() if parent == one]
        return [(pid, words[pid]) for pid in found if len(words.get(pid, ())) > 1]


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
