"""The processes in which the embedded model server runs the models, as the kernel lists them.

A server in another container lists nothing here: then nobody but the server itself can tell how its processes are.
"""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from frontend.tritonserver import STUB

PROC = Path("/proc")


@dataclass(frozen=True, order=True)
class Stub:
    """One process, told apart from a later one with the same id by when it began."""

    began_ticks: int
    pid: int

    def lives(self) -> bool:
        """Whether it runs, or could: one that is stopped lives, a zombie does not."""
        return _began_ticks(self.pid) == self.began_ticks

    def kill(self) -> None:
        """Kills it, also where it is stopped; nothing where it has ended."""
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid)
            try:
                if self.lives():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)


@dataclass(frozen=True)
class Stubs:
    """All of one server, whose regions of shared memory have names that begin with `shm_prefix`."""

    shm_prefix: str

    def of(self, model: str) -> tuple[Stub, ...]:
        """The living ones of a model, the oldest first; reads all of ``/proc``, which takes milliseconds."""
        found = []
        for entry in PROC.iterdir():
            if entry.name.isdigit() and self._runs(entry, model):
                pid = int(entry.name)
                began_ticks = _began_ticks(pid)
                found += [Stub(began_ticks, pid)] if began_ticks is not None else []
        return tuple(sorted(found))

    def newest(self, model: str) -> Stub | None:
        """The one that serves the model now; None where none is known."""
        return next(reversed(self.of(model)), None)

    def _runs(self, entry: Path, model: str) -> bool:
        """The command line is the stub, its model.py, its region of shared memory and more."""
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return False
        if len(words) < 3 or Path(words[0]).name != STUB or not words[2].startswith(self.shm_prefix):
            return False
        return model in Path(words[1]).parts[-3:-2]


def _began_ticks(pid: int) -> int | None:
    """When a process began, in the kernel's ticks since boot; None where it has ended, a zombie among them."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
