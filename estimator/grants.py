"""How a card is divided: the equation of the bank.

::

    total = driver reserved + foreign use + margin + sum over engines of (context + grant) + card account

The division is a pure function of the settings and the card's size, so every process that computes it gets the same.
"""

from dataclasses import dataclass, replace

from common.errors import SettingsError
from common.settings import Settings, parse_margin
from estimator.unet import UnetShape, standing

ENGINES = 2
CONTEXT_BYTES = {"cpu": 450 * 2**20, "cuda": 768 * 2**20}
"""What a process of ours holds outside its grant: on CUDA the context and first kernels (719 MiB measured on an H200
with torch 2.11), on the CPU the interpreter with torch and transformers loaded."""


@dataclass(frozen=True)
class Grants:
    """The card divided, every term in bytes."""

    total_bytes: int
    reserved_bytes: int
    foreign_bytes: int
    margin_bytes: int
    context_bytes: int
    """Of all engines together."""
    llama_bytes: int
    unet_bytes: int

    @property
    def card_bytes(self) -> int:
        """What the equation leaves: the card account."""
        taken_bytes = self.reserved_bytes + self.foreign_bytes + self.margin_bytes + self.context_bytes
        return self.total_bytes - taken_bytes - self.llama_bytes - self.unet_bytes

    def explain(self) -> str:
        """The equation with its numbers, on one line."""
        return (
            f"{self.total_bytes:,} total = {self.reserved_bytes:,} driver + {self.foreign_bytes:,} foreign"
            f" + {self.margin_bytes:,} margin + {self.context_bytes:,} contexts"
            f" + {self.llama_bytes:,} llama + {self.unet_bytes:,} unet + {self.card_bytes:,} card account"
        )


def divide(settings: Settings, device_type: str, total_bytes: int, reserved_bytes: int) -> Grants:
    """Divides a card of `total_bytes`, of which the driver holds `reserved_bytes`.

    A grant that is set is kept. Else unet gets what its tiles and canvases need, and llama the rest. `card.total` beats
    the card's own size when it is smaller. Raises SettingsError with the whole equation when the sum does not fit.
    """
    total_bytes = total_bytes if settings.card.total is None else min(total_bytes, int(settings.card.total))
    unet_bytes = int(settings.unet.grant) if settings.unet.grant is not None else unet_need_bytes(settings, device_type)
    without_llama = Grants(
        total_bytes=total_bytes,
        reserved_bytes=reserved_bytes,
        foreign_bytes=int(settings.card.foreign),
        margin_bytes=parse_margin(settings.card.margin, total_bytes),
        context_bytes=ENGINES * CONTEXT_BYTES[device_type],
        llama_bytes=0,
        unet_bytes=unet_bytes,
    )
    rest_bytes = without_llama.card_bytes
    llama_bytes = int(settings.llama.grant) if settings.llama.grant is not None else rest_bytes
    grants = replace(without_llama, llama_bytes=llama_bytes)
    if llama_bytes <= 0 or grants.card_bytes < 0:
        raise SettingsError(
            f"the card is too small: {grants.explain()}; lower unet.canvas, unet.grant, llama.grant or card.margin"
        )
    return grants


def unet_need_bytes(settings: Settings, device_type: str) -> int:
    """What the segmentation engine stands on with its settings, in bytes."""
    unet = settings.unet
    shape = UnetShape(width=unet.width, classes=len(unet.class_names))
    return standing(
        shape,
        unet.dtype_on(device_type),
        unet.tile_pixels_on(device_type),
        unet.tile_batch,
        unet.canvas_bytes_on(device_type),
    ).total_bytes
