"""One launcher for each state directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import SettingsError


@contextmanager
def sole_user(state_dir: Path) -> Iterator[None]:
    """Holds `state_dir`, made with mode 0700 where it is missing, until the block ends or the process dies.

    Raises SettingsError with the other's process id when somebody else holds it.
    """
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (state_dir / "launcher.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise SettingsError(
                f"another vramgate (process {file.read().strip() or '?'}) uses {state_dir}: stop it, "
                "or give this one a directory of its own with VRAMGATE_STATE__DIR"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
