"""DICOM and NIfTI files: recognised by their first bytes, described by their headers; no pixel is decoded.

The libraries that read them, pydicom and nibabel, are an optional extra, loaded with the first such file.
"""

import gzip
import io
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from common.errors import InvalidRequest, UnsupportedMedia

DICOM, NIFTI = "DICOM", "NIfTI"
FORMATS = (DICOM, NIFTI)

_NIFTI_BYTES = 540
"""Length of the longer of the two NIfTI headers."""
_MAX_NIFTI_OFFSET = 2**20
"""Bytes before the voxels: the header and its extensions."""
_DICOM_TAGS = (
    "Rows",
    "Columns",
    "NumberOfFrames",
    "SamplesPerPixel",
    "BitsAllocated",
    "PhotometricInterpretation",
)
_PLAIN_SYNTAXES = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2")
"""Implicit and explicit little endian, explicit big endian: what unpacks to no more than the file's own size."""


@dataclass(frozen=True)
class Plane:
    """What a medical file says of its one picture."""

    format: str
    width: int
    height: int
    bit_depth: int
    mode: str
    """DICOM's photometric interpretation; of NIfTI the name of the voxels' type."""


def format_of(data: bytes) -> str | None:
    """One of FORMATS by the first bytes of a file; None for anything else."""
    if data[128:132] == b"DICM":
        return DICOM
    return NIFTI if _nifti_version(_nifti_start(data)) else None


def read(data: bytes) -> Plane:
    """The header of a file of one of FORMATS.

    Raises InvalidRequest for a broken header, for several frames or slices and for pixels that are not read, and
    UnsupportedMedia where the extra is not installed.
    """
    with_library = _read_dicom if format_of(data) == DICOM else _read_nifti
    try:
        return with_library(data)
    except (InvalidRequest, UnsupportedMedia, MemoryError):
        raise
    except Exception as error:  # the libraries raise almost anything on hostile input
        raise InvalidRequest(f"the image is broken: {type(error).__name__}", param="image") from None


def dicom_dataset(data: bytes, *, with_pixels: bool) -> Any:
    """The ``pydicom.Dataset`` of a file whose pixels are not compressed; raises as :func:`read` does."""
    pydicom = _library("pydicom", DICOM)
    meta = pydicom.filereader.read_dataset(
        io.BytesIO(data[132:]), False, True, stop_when=lambda tag, vr, length: tag.group != 2
    )
    if meta.TransferSyntaxUID not in _PLAIN_SYNTAXES:
        raise InvalidRequest(
            f"DICOM that is compressed ({str(meta.TransferSyntaxUID)[:64]}) is not read: decompress it", param="image"
        )
    tags = None if with_pixels else list(_DICOM_TAGS)
    return pydicom.dcmread(io.BytesIO(data), stop_before_pixels=not with_pixels, specific_tags=tags)


def nifti_header(data: bytes) -> Any:
    """The ``nibabel`` header of a single-file NIfTI-1 or NIfTI-2, plain or gzipped; raises as :func:`read` does."""
    nifti = _library("nibabel", NIFTI)
    start = _nifti_start(data)
    kind = nifti.Nifti1Header if _nifti_version(start) == 1 else nifti.Nifti2Header
    header = kind(start[: kind.template_dtype.itemsize])
    if not 0 < header.get_data_offset() <= _MAX_NIFTI_OFFSET:
        raise InvalidRequest(f"the voxels begin after more than {_MAX_NIFTI_OFFSET} bytes", param="image")
    return header


def _read_dicom(data: bytes) -> Plane:
    dataset = dicom_dataset(data, with_pixels=False)
    frames = int(dataset.get("NumberOfFrames") or 1)
    mode, bits = str(dataset.PhotometricInterpretation), int(dataset.BitsAllocated)
    if frames != 1:
        raise InvalidRequest(f"the DICOM file has {frames} frames: send a file with one", param="image")
    if (mode, int(dataset.SamplesPerPixel)) not in (("MONOCHROME1", 1), ("MONOCHROME2", 1), ("RGB", 3)):
        raise InvalidRequest(f"DICOM with {mode} pixels is not read: convert it to MONOCHROME2 or RGB", param="image")
    if bits not in ((8,) if mode == "RGB" else (8, 16)):
        raise InvalidRequest(f"DICOM with {mode} pixels of {bits} bits is not read", param="image")
    return Plane(DICOM, int(dataset.Columns), int(dataset.Rows), bits, mode)


def _read_nifti(data: bytes) -> Plane:
    header = nifti_header(data)
    shape = [int(length) for length in header.get_data_shape()] + [1, 1]
    voxels = header.get_data_dtype()
    if any(length != 1 for length in shape[2:]):
        size = " x ".join(str(length) for length in shape[:-2])
        raise InvalidRequest(f"the NIfTI file holds a volume of {size}: send one slice", param="image")
    if voxels.kind not in "iuf" or voxels.itemsize > 4:
        raise InvalidRequest(
            f"NIfTI with voxels of type {voxels.name} is not read: convert them to float32, or to integers of 8 to 32"
            " bits",
            param="image",
        )
    return Plane(NIFTI, shape[0], shape[1], 8 * voxels.itemsize, voxels.name)


def _library(name: str, file_format: str) -> Any:
    try:
        if name == "nibabel":
            import nibabel

            return nibabel
        import pydicom
        import pydicom.filereader
    except ImportError:
        raise UnsupportedMedia(
            f"this is a {file_format} file, and the service is installed without what reads it: "
            "pip install 'vramgate[medical]'",
            param="image",
        ) from None
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    return pydicom


def _nifti_start(data: bytes) -> bytes:
    """The first bytes, unpacked if they are gzipped; empty where they cannot be."""
    if not data.startswith(b"\x1f\x8b"):
        return data[:_NIFTI_BYTES]
    with suppress(OSError, EOFError, zlib.error), gzip.open(io.BytesIO(data)) as stream:
        return stream.read(_NIFTI_BYTES)
    return b""


def _nifti_version(start: bytes) -> int:
    """1 or 2; 0 for what is no single-file NIfTI."""
    if start[344:348] == b"n+1\0":
        return 1
    return 2 if start[4:8] == b"n+2\0" else 0
