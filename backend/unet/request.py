"""One segmentation as it comes in and goes out: checked inputs, a mask."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import image_header
from common.errors import InvalidRequest, NeverFits
from common.sections import Unet
from common.wire import Lease, UnetLimits


@dataclass(frozen=True)
class Segmentation:
    """What to segment; exactly one of `image` and `encoded` is there."""

    height: int
    width: int
    threshold: float
    """Probability above which a pixel belongs to the one class; without meaning for several classes."""
    want_probabilities: bool = False
    lease: Lease | None = None
    image: NDArray[np.uint8] | None = field(default=None, repr=False)
    """[H, W, 3] on the host."""
    encoded: bytes | None = field(default=None, repr=False)
    """A file in one of the formats of ``image_header``, its header checked."""


@dataclass(frozen=True)
class Mask:
    """The answer."""

    mask: NDArray[np.uint8]
    """[H, W]: 0 or 1 for one class, else the index of the class."""
    probabilities: NDArray[np.float32] | None = None
    """[C, H, W], where they were asked for."""


def parse(
    inputs: Mapping[str, NDArray[Any]],
    lease: Lease | None,
    limits: UnetLimits,
    settings: Unet,
    want_probabilities: bool = False,
) -> Segmentation:
    """The request that Triton's input tensors spell; copies what it keeps of them.

    Raises InvalidRequest naming the input that is missing or wrong, NeverFits for too many pixels.
    """
    threshold = _threshold(inputs.get("threshold"), limits, settings)
    image, encoded = inputs.get("image"), inputs.get("encoded")
    if (image is None) == (encoded is None):
        raise InvalidRequest("exactly one of image and encoded is needed", param="image")
    if image is not None:
        height, width = _check_pixels(image, limits)
        return Segmentation(height, width, threshold, want_probabilities, lease, image=np.array(image, order="C"))
    data = _only_bytes("encoded", inputs["encoded"])
    header = image_header.read(data, limits.max_pixels)
    return Segmentation(header.height, header.width, threshold, want_probabilities, lease, encoded=data)


def _check_pixels(image: NDArray[Any], limits: UnetLimits) -> tuple[int, int]:
    if image.dtype != np.uint8:
        raise InvalidRequest(f"image: UINT8 is needed, not {image.dtype}", param="image")
    if image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise InvalidRequest(f"image: the shape must be [height, width, 3], not {list(image.shape)}", param="image")
    height, width = image.shape[:2]
    if height * width > limits.max_pixels:
        raise NeverFits(
            f"the image has {width} x {height} = {height * width} pixels, accepted are {limits.max_pixels}",
            param="image",
            numbers={"pixels": height * width, "max_pixels": limits.max_pixels},
        )
    return height, width


def _threshold(values: NDArray[Any] | None, limits: UnetLimits, settings: Unet) -> float:
    if values is None:
        return settings.threshold
    if limits.classes > 1:
        raise InvalidRequest("threshold: this model decides between several classes by the highest", param="threshold")
    if values.dtype != np.float32 or values.size != 1:
        raise InvalidRequest("threshold: one FP32 number is needed", param="threshold")
    value = float(values.reshape(-1)[0])
    if not 0 < value < 1:
        raise InvalidRequest("threshold: a number above 0 and below 1 is needed", param="threshold")
    return value


def _only_bytes(name: str, values: NDArray[Any]) -> bytes:
    if values.dtype != np.object_ or values.size != 1:
        raise InvalidRequest(f"{name}: exactly one string is needed", param=name)
    return bytes(values.reshape(-1)[0])
