"""DICOM and NIfTI: what a viewer with the file's own window would show, and clear words for everything else."""

import gzip
import io
import sys
from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import (
    JPEG2000,
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    SecondaryCaptureImageStorage,
)

from backend.unet.decode import decode
from common.errors import InvalidRequest, NeverFits, UnsupportedMedia
from common.image_header import read

HEIGHT, WIDTH = 6, 4


def counts() -> NDArray[np.uint16]:
    return np.arange(HEIGHT * WIDTH, dtype=np.uint16).reshape(HEIGHT, WIDTH)


def dicom(pixels: NDArray[Any], syntax: str = ExplicitVRLittleEndian, **elements: Any) -> bytes:
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = UID(syntax)
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = SecondaryCaptureImageStorage, UID("1.2.3")
    dataset = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.SOPClassUID, dataset.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    dataset.Rows, dataset.Columns = pixels.shape[:2]
    dataset.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    dataset.PhotometricInterpretation = "MONOCHROME2" if pixels.ndim == 2 else "RGB"
    dataset.PlanarConfiguration = 0
    dataset.BitsAllocated = dataset.BitsStored = 8 * pixels.itemsize
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    dataset.PixelData = pixels.tobytes()
    for name, value in elements.items():
        setattr(dataset, name, value)
    stream = io.BytesIO()
    if syntax == JPEG2000:
        del dataset.PixelData
    dataset.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def nifti(voxels: NDArray[Any], kind: Any = nibabel.Nifti1Image, **header: Any) -> bytes:
    image = kind(voxels, np.eye(4))
    for name, value in header.items():
        image.header[name] = value
    result: bytes = image.to_bytes()
    return result


def grey(data: bytes) -> NDArray[np.uint8]:
    """The levels of a decoded grey picture whose size its header told."""
    header = read(data, 10**6)
    pixels = decode(data)
    assert pixels.shape == (header.height, header.width, 3)
    assert pixels.flags.c_contiguous
    assert (pixels == pixels[:, :, :1]).all()
    levels: NDArray[np.uint8] = pixels[:, :, 0]
    return levels


def stretched(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    levels: NDArray[np.uint8] = np.rint(255 * np.clip((values.astype(float) - low) / (high - low), 0, 1)).astype("u1")
    return levels


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian])
def test_dicom_without_a_window_is_stretched_from_its_lowest_to_its_highest_value(syntax: str) -> None:
    data = dicom(counts() + 1000, syntax)
    header = read(data, 10**6)
    assert (header.format, header.mode, header.bit_depth, header.frames) == ("DICOM", "MONOCHROME2", 16, 1)
    np.testing.assert_array_equal(grey(data), stretched(counts(), 0, HEIGHT * WIDTH - 1))


def test_dicom_values_are_rescaled_and_then_windowed() -> None:
    """A window of 11 around 0 Hounsfield units runs from -5.5 to 4.5, as PS3.3 C.11.2.1.2 has it."""
    data = dicom(counts(), RescaleSlope=2, RescaleIntercept=-20, WindowCenter=[0, 99], WindowWidth=[11, 9])
    np.testing.assert_array_equal(grey(data), stretched(2.0 * counts() - 20, -5.5, 4.5))
    exact = dicom(counts(), WindowCenter=10, WindowWidth=8, VOILUTFunction="LINEAR_EXACT")
    np.testing.assert_array_equal(grey(exact), stretched(counts(), 6, 14))


def test_dicom_of_8_bits_negative_values_and_monochrome1() -> None:
    np.testing.assert_array_equal(grey(dicom(counts().astype(np.uint8))), stretched(counts(), 0, 23))
    signed = counts().astype(np.int16) - 12
    np.testing.assert_array_equal(grey(dicom(signed)), stretched(counts(), 0, 23))
    inverted = dicom(counts(), PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_array_equal(grey(inverted), 255 - stretched(counts(), 0, 23))


def test_dicom_in_colour_comes_out_as_it_is() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode(dicom(colours)), colours)


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint16", "int32", "float32"])
def test_nifti_slice_has_its_first_axis_to_the_right(kind: Any, dtype: str) -> None:
    data = nifti(counts().T.astype(dtype), kind)
    header = read(data, 10**6)
    assert (header.format, header.mode, header.width, header.height) == ("NIfTI", dtype, WIDTH, HEIGHT)
    np.testing.assert_array_equal(grey(data), stretched(counts(), 0, 23))
    np.testing.assert_array_equal(grey(gzip.compress(data)), grey(data))


def test_nifti_window_is_its_display_range_and_what_is_no_number_is_black() -> None:
    voxels = counts().T.astype(np.float32)[:, :, None]
    voxels[1, 2] = np.nan
    voxels[3, 3] = np.inf
    shown = stretched(counts(), 5, 15)
    shown[2, 1], shown[3, 3] = 0, 255
    np.testing.assert_array_equal(grey(nifti(voxels, cal_min=5, cal_max=15)), shown)
    assert grey(nifti(np.full((3, 3), np.nan, np.float32))).max() == 0


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (dicom(counts(), NumberOfFrames=5), "5 frames"),
        (dicom(counts(), PhotometricInterpretation="PALETTE COLOR"), "PALETTE COLOR"),
        (dicom(counts(), DeflatedExplicitVRLittleEndian), "compressed"),
        (dicom(counts(), JPEG2000), "compressed"),
        (nifti(np.zeros((4, 5, 6), np.int16)), "volume of 4 x 5 x 6"),
        (nifti(np.zeros((4, 5), np.float64)), "float64"),
        (nifti(np.zeros((4, 5), np.complex64)), "complex64"),
        (dicom(counts())[:200], "broken"),
    ],
)
def test_what_is_not_read_is_refused_in_words(data: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        read(data, 10**6)


NOISE = np.random.default_rng(2).integers(0, 2**16, (HEIGHT, 900), dtype=np.uint16)


@pytest.mark.parametrize("data", [dicom(NOISE), nifti(NOISE.T), gzip.compress(nifti(NOISE.T))])
def test_the_pixel_limit_comes_before_decoding_and_a_truncated_file_is_the_callers_fault(data: bytes) -> None:
    with pytest.raises(NeverFits) as refusal:
        read(data, NOISE.size - 1)
    assert refusal.value.numbers == {"pixels": NOISE.size, "max_pixels": NOISE.size - 1}
    with pytest.raises(InvalidRequest, match="broken"):
        decode(data[: len(data) * 2 // 3])


@pytest.mark.parametrize(("library", "data"), [("pydicom", dicom(counts())), ("nibabel", nifti(counts()))])
def test_a_missing_extra_is_said_with_what_to_install(
    library: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UnsupportedMedia, match=r"vramgate\[medical\]"):
        read(data, 10**6)


def test_flipped_bytes_never_escape_as_another_error() -> None:
    random = np.random.default_rng(1)
    for data in (dicom(counts(), WindowCenter=3, WindowWidth=9), nifti(counts()), gzip.compress(nifti(counts()))):
        for _ in range(150):
            broken = bytearray(data)
            for position in random.integers(0, len(broken), 3):
                broken[position] = random.integers(0, 256)
            try:
                header = read(bytes(broken), 10**5)
                assert decode(bytes(broken)).shape == (header.height, header.width, 3)
            except (InvalidRequest, NeverFits):
                continue
