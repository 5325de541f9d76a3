"""The law of a plain ResNet50-UNet: the allocator's peak of one forward pass over whole images of any size.

The network as it is trained (``backend.unet.network.UNet``, batch normalisation not folded, NCHW), under
``inference_mode``. cuDNN's convolutions want channels last: a 3 x 3 one copies its input, its output and its weights
into a workspace, and that is most of the peak. Where few pixels meet many channels it sums in *slots* of 64 KiB, as
many pieces of the sum as fit the card's multiprocessors; how many slots that are is a constant of card and dtype.
Confirmed to the byte with torch's memory history on an H200, torch 2.11, cuDNN 9.
"""

from dataclasses import dataclass

from estimator.plain import Peak, peak_of
from estimator.rounding import Tensors
from estimator.unet import ITEMSIZE, UnetShape

_LEVELS = 6
"""Image, and the encoder's five features, each at half the resolution of the one before."""
SLOT_BYTES = 2**16
_TILE = 128
"""Rows and columns of a sum that one multiprocessor works on."""
_FEW_PIXELS = 336
"""Up to here only a quarter of the slots is in use."""
_USUAL_SIDE, _USUAL_STEP, _USUAL_PIXELS = 256, 32, 100_000


@dataclass(frozen=True)
class Images:
    """One batch: everything its memory depends on beside the network."""

    batch: int
    height: int
    width: int

    @property
    def path(self) -> str:
        """``grid``: sides from 256 on in steps of 32, 100,000 pixels or more, for cuDNN chooses alike; else ``odd``."""
        sides, pixels = (self.height, self.width), self.batch * self.height * self.width
        usual = min(sides) >= _USUAL_SIDE and not any(side % _USUAL_STEP for side in sides)
        return "grid" if usual and pixels >= _USUAL_PIXELS else "odd"

    def __post_init__(self) -> None:
        if min(self.batch, self.height, self.width) < 1:
            raise ValueError(f"batch, height and width must be 1 or more: {self}")


class ForwardLaw:
    """The peak of forward passes of one network, in bytes over its weights; `dtype` by name."""

    def __init__(self, shape: UnetShape, dtype: str, slots: int = 0) -> None:
        """`slots`: pieces of a sum that cuDNN works on at once (see above); 0 where it does not divide sums."""
        width = shape.width
        self._shape = shape
        self._e = ITEMSIZE[dtype]
        self._slots = slots
        self._encoder = (0, width, 4 * width, 8 * width, 16 * width, 32 * width)
        self._decoder = (width // 4, width // 2, width, 2 * width, 4 * width)

    def peak(self, images: Images) -> Peak:
        """The largest moment of a pass."""
        return peak_of(self.moments(images))

    def moments(self, images: Images) -> dict[str, list[Tensors]]:
        """The first convolution of each decoder block, where input and output are widest."""
        pixels = self._pixels(images)
        return {f"decoder at 1/{1 << level}": self._joined(pixels, level) for level in range(_LEVELS - 1)}

    def _joined(self, pixels: list[int], level: int) -> list[Tensors]:
        """Input, all skips not yet used up, what comes from below, what both were joined to, output, workspace."""
        here, below = pixels[level], (self._encoder[-1] if level == _LEVELS - 2 else self._decoder[level + 1])
        joined, out = below + self._encoder[level], self._decoder[level]
        copies = here * (joined + out) * self._e + 9 * joined * out * self._e + 16
        return [
            ("images", 1, pixels[0] * self._shape.in_channels * self._e),
            *(("skip", 1, pixels[skip] * self._encoder[skip] * self._e) for skip in range(1, level + 1)),
            ("features from below", 1, pixels[level + 1] * below * self._e),
            ("features, joined", 1, here * joined * self._e),
            ("output", 1, here * out * self._e),
            ("workspace: copies of both and of the weights", 1, copies + self._partial_bytes(here, joined, out)),
        ]

    def _partial_bytes(self, pixels: int, joined: int, out: int) -> int:
        """Partial sums where the tiles of an output do not fill the multiprocessors and each has a long sum."""
        tiles = -(-pixels // _TILE) * -(-out // _TILE)
        slots = self._slots if pixels > _FEW_PIXELS else self._slots // 4
        if joined < 16 * self._shape.width or tiles > slots // 2:
            return 0
        return tiles * (slots // tiles) * SLOT_BYTES

    def _pixels(self, images: Images) -> list[int]:
        """Pixels of the whole batch at each level."""
        height, width, found = images.height, images.width, []
        for _ in range(_LEVELS):
            found.append(images.batch * height * width)
            height, width = (height + 1) // 2, (width + 1) // 2
        return found
