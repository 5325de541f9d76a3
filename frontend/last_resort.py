"""What is left where a model needs a new process, and the model server cannot be made to start one."""

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping

LOG = logging.getLogger(__name__)

STUCK = 75
"""Exit status of a frontend that cannot help itself: it has to be restarted, with the model server."""
LAUNCHER_ENV = "LAUNCHED_BY_VRAMGATE"
"""Process id of the launcher, for the frontend that it starts."""
RESTART_SIGNAL = signal.SIGUSR1
"""Asks the launcher for a new model server."""
PAUSE_S = 30.0
"""Between two calls for help: each takes its time to help."""


class LastResort:
    """Asks the launcher for a new model server; where there is none, ends this process if that is wanted."""

    def __init__(
        self, *, may_exit: bool, environ: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`may_exit`: whether somebody restarts this process, and the model server with it."""
        self.stuck = False
        """Whether this process ends because it cannot help itself."""
        self._may_exit = may_exit
        self._launcher = environ.get(LAUNCHER_ENV)
        self._clock = clock
        self._called_s = -float("inf")

    def __call__(self, why: str) -> None:
        """Calls for help, unless that was done a moment ago."""
        if self._clock() - self._called_s < PAUSE_S:
            return
        self._called_s = self._clock()
        parent_pid = os.getppid()  # that of a launcher which has ended is somebody else
        if self._launcher == str(parent_pid):
            LOG.error("the launcher is asked for a new model server: %s", why)
            os.kill(parent_pid, RESTART_SIGNAL)
        elif self._may_exit:
            LOG.critical("ending with status %d, to be restarted: %s", STUCK, why)
            self.stuck = True
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            LOG.error("somebody has to restart the model server: %s", why)
