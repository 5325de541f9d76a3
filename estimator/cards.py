"""Cards known by name: their bytes, and what the driver keeps of them.

Measured are those of the H200 (NVML v2, driver 580). The others are *nominal*: the memory on the data sheet, less what
error correction takes where it takes any, and a share for the driver like the one that was measured. A card at hand
says its own numbers; these are for planning without one. A size such as ``24GiB`` is a nominal card, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import SettingsError
from common.settings import parse_bytes

GIB = 2**30
_DRIVER_SHARE = 0.0043
"""Of the H200: 615 MiB of 140.4 GiB."""
_LEAST_DRIVER_BYTES = 300 * 2**20


@dataclass(frozen=True)
class Card:
    """What NVML would say of an idle card, in bytes."""

    name: str
    total_bytes: int
    reserved_bytes: int
    """Kept by the driver."""
    measured: bool = False
    """Whether the numbers were read from such a card."""


def _nominal(name: str, total_bytes: int) -> Card:
    return Card(name, total_bytes, max(_LEAST_DRIVER_BYTES, int(_DRIVER_SHARE * total_bytes)))


_SIZES_GIB = {
    "t4": 15,
    "a10": 22.5,
    "a10g": 22.5,
    "l4": 22.5,
    "rtx 3090": 24,
    "rtx 4090": 24,
    "rtx 5090": 32,
    "a40": 45,
    "l40s": 45,
    "rtx 6000 ada": 48,
    "a100 40gb": 40,
    "a100 80gb": 80,
    "h100 80gb": 80,
}
CARDS: Mapping[str, Card] = {name: _nominal(name, int(size * GIB)) for name, size in _SIZES_GIB.items()} | {
    "h200": Card("h200", 150_754_820_096, 644_939_776, measured=True)
}
"""Name -> card. Error correction takes a sixteenth of the GDDR of T4, A10, L4, A40 and L40S."""


def named(name: str) -> Card:
    """A card by name, in any case, or a nominal one by its size; raises SettingsError that lists the names."""
    known = CARDS.get(name.lower().removeprefix("nvidia ").replace("-", " "))
    if known is not None:
        return known
    try:
        return _nominal(name, parse_bytes(name))
    except SettingsError:
        raise SettingsError(f"there is no card {name!r}; give a size such as 24GiB, or {', '.join(CARDS)}") from None
