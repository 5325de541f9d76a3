"""A process of ours: in a group of its own, ended with its whole group, and never outliving its parent."""

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

PR_SET_PDEATHSIG = 1
"""``prctl(2)``: the kernel sends this signal when the thread that forked ends, whatever ended it."""
POLL_S = 0.02
KILL_S = 2.0
"""A killed process is gone in milliseconds, unless it hangs in the kernel; then nothing helps."""


class Child:
    """A running process; its group keeps the terminal's Ctrl-C away from it, so that the parent decides the order."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], environ: Mapping[str, str], log: Path | None = None
    ) -> Self:
        """Starts `command`, from the main thread; what it prints is appended to `log`, or goes where ours goes."""
        output = log.open("ab") if log else None
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                preexec_fn=_end_with_parent(os.getpid()),
            )
        finally:
            if output:
                output.close()
        return cls(name, process)

    @property
    def running(self) -> bool:
        """Whether the process has not been seen to end."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Its exit status, negative for a signal, once it has ended."""
        return await self._process.wait()

    async def stop(self, grace_s: float) -> None:
        """Asks it to end; after `grace_s` kills it. On return nothing of its group runs."""
        if self.running:
            self._process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.wait(), grace_s)
        self.kill()
        await self.wait()
        for _ in range(int(KILL_S / POLL_S)):
            if not _group_lives(self.pid):
                return
            await asyncio.sleep(POLL_S)

    def kill(self) -> None:
        """Kills its whole group at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _end_with_parent(parent_pid: int) -> Callable[[], None]:
    """What the new process does before it becomes `command`."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent_pid:
            os._exit(1)

    return prepare


def _group_lives(group: int) -> bool:
    """Whether a process of `group` is left; a zombie that its new parent has not collected does not count."""
    return any(_group_and_state(entry) == (group, True) for entry in Path("/proc").glob("[0-9]*"))


def _group_and_state(entry: Path) -> tuple[int, bool]:
    """Group of a process of ``/proc`` and whether it still runs."""
    try:
        state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return 0, False
    return int(group), state not in "ZX"
