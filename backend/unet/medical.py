"""DICOM and NIfTI pictures to RGB pixels: rescaled, then windowed to 8 bits.

A DICOM picture is rescaled by its slope and intercept; its first window (PS3.3 C.11.2.1.2) becomes black to white,
without one its lowest and highest value; MONOCHROME1 is inverted. Lookup tables in the file are not applied. A NIfTI
slice is rescaled by ``scl_slope`` and ``scl_inter``; its window is ``cal_min`` to ``cal_max`` where that is one, else
its lowest to highest finite value; what is no number is black. Its first axis runs to the right and its second one
down, as stored, so the mask's pixel (row, column) is voxel [column, row].
"""

import gzip
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import medical_header
from common.errors import InvalidRequest, RequestError

_BAND_PIXELS = 2**20
"""Pixels that are converted at once."""


@dataclass(frozen=True)
class _Scale:
    """From stored to shown values."""

    slope: float = 1.0
    intercept: float = 0.0
    window: tuple[float, float] | None = None
    """What is black and what is white, after rescaling."""
    inverted: bool = False


def decode(data: bytes) -> NDArray[np.uint8]:
    """The picture of a DICOM or NIfTI file as RGB, uint8 [H, W, 3]; the caller has checked its header.

    Raises InvalidRequest for a truncated or broken file.
    """
    try:
        if medical_header.format_of(data) == medical_header.DICOM:
            return _dicom(medical_header.dicom_dataset(data, with_pixels=True))
        return _nifti(data)
    except (RequestError, MemoryError):
        raise
    except Exception as error:  # the libraries raise almost anything on hostile input
        raise InvalidRequest(f"the image is broken: {type(error).__name__}", param="image") from None


def _dicom(dataset: Any) -> NDArray[np.uint8]:
    pixels: NDArray[Any] = dataset.pixel_array
    if dataset.PhotometricInterpretation == "RGB":
        return np.ascontiguousarray(pixels)
    scale = _Scale(
        float(dataset.get("RescaleSlope") or 1),
        float(dataset.get("RescaleIntercept") or 0),
        _dicom_window(dataset),
        inverted=dataset.PhotometricInterpretation == "MONOCHROME1",
    )
    return _shown(pixels, scale)


def _dicom_window(dataset: Any) -> tuple[float, float] | None:
    centre, width = (_first(dataset.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if centre is None or width is None or width < 1:
        return None
    if dataset.get("VOILUTFunction") == "LINEAR_EXACT":
        return centre - width / 2, centre + width / 2
    return centre - 0.5 - (width - 1) / 2, centre - 0.5 + (width - 1) / 2


def _first(value: Any) -> float | None:
    """Of a number or several."""
    numbers = [value] if isinstance(value, (int, float)) else list(value or ())
    return float(numbers[0]) if numbers else None


def _nifti(data: bytes) -> NDArray[np.uint8]:
    header = medical_header.nifti_header(data)
    width, height = (*header.get_data_shape(), 1)[:2]
    voxels, offset = header.get_data_dtype(), header.get_data_offset()
    if data.startswith(b"\x1f\x8b"):
        with gzip.open(io.BytesIO(data)) as stream:
            stream.seek(offset)
            data, offset = stream.read(width * height * voxels.itemsize), 0
    plane = np.frombuffer(data, voxels, width * height, offset).reshape(height, width)
    slope, intercept = header.get_slope_inter()
    low, high = float(header["cal_min"]), float(header["cal_max"])
    return _shown(plane, _Scale(slope or 1, intercept or 0, (low, high) if low < high else None))


def _shown(plane: NDArray[Any], scale: _Scale) -> NDArray[np.uint8]:
    """Grey levels of [H, W] stored values, three times."""
    step = max(1, _BAND_PIXELS // plane.shape[1])
    bands = [slice(top, top + step) for top in range(0, len(plane), step)]
    low, high = scale.window or _range(_rescaled(plane[band], scale) for band in bands)
    picture = np.empty((*plane.shape, 3), np.uint8)
    for band in bands:
        share = np.nan_to_num((_rescaled(plane[band], scale) - low) / max(high - low, 1e-30), nan=0)
        share = np.clip(1 - share if scale.inverted else share, 0, 1)
        picture[band] = np.rint(255 * share).astype(np.uint8)[:, :, None]
    return picture


def _rescaled(values: NDArray[Any], scale: _Scale) -> NDArray[np.float64]:
    return values.astype(np.float64) * scale.slope + scale.intercept


def _range(bands: Iterable[NDArray[np.float64]]) -> tuple[float, float]:
    """Lowest and highest finite value; 0 and 0 where there is none."""
    finite = (band[np.isfinite(band)] for band in bands)
    ends = [(float(band.min()), float(band.max())) for band in finite if band.size]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else (0.0, 0.0)
