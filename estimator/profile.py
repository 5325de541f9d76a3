"""A profile: what was measured of one plain model on one card with one set of versions, and the bound it gives.

Allocated bytes need no profile, they follow from shapes. Reserved bytes do: a pool holds its tensors with holes
between them, ``factor`` times their bytes at the most, in whole pages. The factor is as constant as the order of the
tensors is, so it is measured by path (``vramgate calibrate``) and means nothing for another model, card or version: a
profile is refused where one of them differs.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from common.errors import SettingsError
from estimator.llama import LlamaShape
from estimator.plain import Peak
from estimator.rounding import LARGE_PAGE_BYTES, SMALL_PAGE_BYTES, Footprint, reserved_bytes
from estimator.unet import UnetShape

GUARD = 1.01
"""On every measured factor: a hole is only seen once it costs a page, so the largest is known to about this much."""
SPARE_BYTES = 2 * SMALL_PAGE_BYTES
"""Held by every bound beside the factors, for small tensors that no law of shapes lists."""
ALLOCATOR_ENV = "PYTORCH_CUDA_ALLOC_CONF"
Shape = LlamaShape | UnetShape
_SHAPES: Mapping[str, type[LlamaShape] | type[UnetShape]] = {"llama": LlamaShape, "unet": UnetShape}


@dataclass(frozen=True)
class Setup:
    """Everything a profile depends on beside the shape; all of it must be the same."""

    dtype: str
    attention: str
    """The attention's implementation by transformers' name; ``none`` where there is none."""
    card: str
    torch: str
    transformers: str
    allocator: str
    """What `ALLOCATOR_ENV` says."""


@dataclass(frozen=True)
class Holes:
    """Of one path: how much more than its tensors a pool holds, at the most of `samples` runs."""

    small_factor: float
    large_factor: float
    large_spare_pages: int
    """Large pages beside the factor, where a pool is so small that its holes do not show in a factor."""
    coverage: float
    """Share of new calls of this path that the bound is promised to cover, before the guard and the spares."""
    samples: int


@dataclass(frozen=True)
class Profile:
    """The constants of one model in one setup."""

    setup: Setup
    shape: Shape
    free: Footprint
    """Mapped by the allocator and unused once the model is loaded and warm."""
    workspace_bytes: int
    """What libraries keep inside the allocator from the first call on."""
    slots: int
    """See :class:`estimator.plain_unet.ForwardLaw`; 0 for a language model."""
    paths: Mapping[str, Holes]
    calibration_s: float = 0.0
    """What measuring took, from start to end."""

    def bound_bytes(self, peak: Peak, path: str, widened: float = 1.0) -> int:
        """The most that the process's reserved memory grows by in a call with that peak.

        `widened`: see :mod:`estimator.drift`. Raises SettingsError for a path that was not measured.
        """
        if path not in self.paths:
            raise SettingsError(f"the profile has no path {path!r}; measured were {', '.join(self.paths)}")
        holes, widened = self.paths[path], GUARD * widened
        need = Footprint(
            math.ceil(peak.pools.small_bytes * holes.small_factor * widened),
            math.ceil(peak.pools.large_bytes * holes.large_factor * widened),
        )
        spare_bytes = SPARE_BYTES + holes.large_spare_pages * LARGE_PAGE_BYTES
        return reserved_bytes(need, self.free) + spare_bytes

    def require(self, setup: Setup, shape: Shape) -> None:
        """Raises SettingsError that names the first field in which the profile is for something else."""
        here = {"kind": type(shape).__name__} | asdict(setup) | asdict(shape)
        mine = {"kind": type(self.shape).__name__} | asdict(self.setup) | asdict(self.shape)
        for field, value in here.items():
            if mine[field] != value:
                raise SettingsError(
                    f"the profile was measured with {field} {mine[field]!r}, here it is {value!r};"
                    " run vramgate calibrate on this card"
                )

    def to_json(self) -> str:
        """One line for each constant."""
        kind = next(kind for kind, shape in _SHAPES.items() if isinstance(self.shape, shape))
        return json.dumps({"kind": kind} | asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> "Profile":
        """Raises SettingsError, naming `where`, for what is no profile."""
        try:
            told: dict[str, Any] = json.loads(text)
            return cls(
                setup=Setup(**told["setup"]),
                shape=_SHAPES[told["kind"]](**told["shape"]),
                free=Footprint(**told["free"]),
                workspace_bytes=int(told["workspace_bytes"]),
                slots=int(told["slots"]),
                paths={path: Holes(**holes) for path, holes in told["paths"].items()},
                calibration_s=float(told["calibration_s"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingsError(f"{where} is no profile of vramgate calibrate: {error!r}") from None


def read(file: Path) -> Profile:
    """The profile in a file; raises SettingsError."""
    try:
        return Profile.from_json(file.read_text(encoding="utf-8"), str(file))
    except OSError as error:
        raise SettingsError(f"cannot read the profile {file}: {error.strerror}") from None


def shipped() -> dict[str, Profile]:
    """Name -> profile, of those that come with the package."""
    folder = resources.files("estimator") / "profiles"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    return {
        file.name.removesuffix(".json"): Profile.from_json(file.read_text(encoding="utf-8"), file.name)
        for file in files
    }
