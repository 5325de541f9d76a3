"""What can be changed while the frontend runs: SIGHUP reads the settings again.

The log's level is put into force; everything else that differs is named, and needs a restart. The key file is no
setting but a file of its own, and is seen within a second anyway.
"""

import logging
import signal
from collections.abc import Callable

from common import settings as settings_module
from common.errors import SettingsError
from common.settings import Settings

LOG = logging.getLogger(__name__)

LIVE = frozenset({"log.level"})


def on_hangup(settings: Settings) -> None:
    """From now on SIGHUP means: read the settings again; `settings` are those in force."""
    signal.signal(signal.SIGHUP, lambda *_: again(settings))


def again(running: Settings, load: Callable[[], Settings] = settings_module.load) -> None:
    """Puts into force what can be; what cannot be read changes nothing."""
    try:
        wanted = load()
    except SettingsError as error:
        LOG.error("the settings are not read again: %s", error)
        return
    logging.getLogger().setLevel(wanted.log.level.upper())
    LOG.warning("settings read again, the log's level is %s", wanted.log.level)
    rest = sorted(changed(running, wanted) - LIVE)
    if rest:
        LOG.warning("these take effect with a restart: %s", ", ".join(rest))


def changed(one: Settings, other: Settings) -> frozenset[str]:
    """Keys (``llama.max_batch``) whose values differ."""
    left, right = one.model_dump(), other.model_dump()
    return frozenset(
        f"{section}.{key}" for section, keys in left.items() for key in keys if keys[key] != right[section][key]
    )
