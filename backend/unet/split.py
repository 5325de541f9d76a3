"""A split of microscopy images into train, validation and test in which near-duplicates stay together.

Two images are near-duplicates when either holds:

- **same look**: their 32 x 32 grey thumbnails, shifted against each other, correlate above 0.7 (one object
  photographed twice);
- **same field of view**: the border of one continues in the border of the other, that is, the root mean square
  difference of the two touching pixel rows is below 0.4 times the contrast along them and below twice the difference
  of neighbouring rows inside the images (tiles cut from one larger picture).

Groups are the connected components of that relation. They are dealt out whole, kind of microscopy by kind, so that each
part holds its share of every kind.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]
Matrix = npt.NDArray[np.float32]

KINDS = ("fluorescence", "stained", "bright-field")
SHARES = {"train": 0.75, "validation": 0.10, "test": 0.15}
THUMBNAIL_PIXELS = 32
LOOK_CORRELATION = 0.7
BORDER_RELATIVE_DIFFERENCE = 0.4
BORDER_STEP_RATIO = 2.0
BORDER_MIN_CONTRAST = 2.0
"""Grey levels below which a border says nothing (dark, empty background)."""


def split_by_group(images: Images, seed: int) -> dict[str, npt.NDArray[np.int64]]:
    """Indices of each part of SHARES; no near-duplicate group straddles two parts.

    `images` is uint8 [N, H, W, 3] with H and W multiples of 32. A group belongs to the kind of most of its images.
    """
    groups = near_duplicate_groups(images)
    kinds = kinds_of(images)
    group_kinds = [int(np.bincount(kinds[group]).argmax()) for group in groups]
    parts: dict[str, list[int]] = {name: [] for name in SHARES}
    order = np.random.default_rng(seed).permutation(len(groups))
    for kind in range(len(KINDS)):
        _deal([groups[i] for i in order if group_kinds[i] == kind], parts)
    return {name: np.array(sorted(indices), dtype=np.int64) for name, indices in parts.items()}


def near_duplicate_groups(images: Images) -> list[npt.NDArray[np.int64]]:
    """Connected components of "near-duplicate of", ordered by their smallest index."""
    return _components((look_correlation(images) > LOOK_CORRELATION) | borders_continue(images))


def look_correlation(images: Images) -> Matrix:
    """Highest normalised cross-correlation of the grey thumbnails over all cyclic shifts, [N, N]."""
    count, height, width, _ = images.shape
    size = THUMBNAIL_PIXELS
    grey = images.mean(axis=3, dtype=np.float32)
    thumbnails = grey.reshape(count, size, height // size, size, width // size).mean(axis=(2, 4))
    thumbnails -= thumbnails.mean(axis=(1, 2), keepdims=True)
    thumbnails /= np.maximum(np.sqrt((thumbnails**2).sum(axis=(1, 2), keepdims=True)), 1e-6)
    spectra = np.fft.rfft2(thumbnails)
    correlation = np.zeros((count, count), np.float32)
    for i, one in enumerate(spectra):
        shifted = np.fft.irfft2(one * spectra[i:].conj(), s=(size, size))
        correlation[i, i:] = correlation[i:, i] = shifted.max(axis=(1, 2))
    return correlation


def borders_continue(images: Images) -> npt.NDArray[np.bool_]:
    """[N, N]: the right (lower) border of one image continues in the left (upper) border of the other."""
    turned = images.transpose(0, 2, 1, 3)
    continues = _bottom_meets_top(images) | _bottom_meets_top(turned)
    np.fill_diagonal(continues, False)
    return continues | continues.T


def kinds_of(images: Images) -> npt.NDArray[np.int64]:
    """[N]: index into KINDS. Coloured images are stained, bright grey ones bright-field, others fluorescence."""
    saturation = (images.max(axis=3).astype(np.int16) - images.min(axis=3)).mean(axis=(1, 2))
    bright = images.mean(axis=(1, 2, 3)) > 128
    return np.where(saturation > 5, KINDS.index("stained"), np.where(bright, KINDS.index("bright-field"), 0))


def _bottom_meets_top(images: Images) -> npt.NDArray[np.bool_]:
    bottom, top = _rows(images, -1), _rows(images, 0)
    step = np.maximum(_rms(bottom - _rows(images, -2))[:, None], _rms(top - _rows(images, 1))[None])
    contrast = np.minimum(bottom.std(axis=1)[:, None], top.std(axis=1)[None])
    squares = (bottom**2).mean(axis=1)[:, None] + (top**2).mean(axis=1)[None] - 2 * bottom @ top.T / bottom.shape[1]
    difference = np.sqrt(np.maximum(squares, 0))
    limit = np.minimum(BORDER_RELATIVE_DIFFERENCE * contrast, BORDER_STEP_RATIO * np.maximum(step, 1))
    result: npt.NDArray[np.bool_] = (difference < limit) & (contrast > BORDER_MIN_CONTRAST)
    return result


def _rows(images: Images, index: int) -> Matrix:
    return images[:, index].reshape(len(images), -1).astype(np.float32)


def _rms(rows: Matrix) -> Matrix:
    result: Matrix = np.sqrt((rows**2).mean(axis=1))
    return result


def _components(related: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.int64]]:
    labels = np.full(len(related), -1)
    components = []
    for start in range(len(related)):
        if labels[start] >= 0:
            continue
        reached = np.zeros(len(related), dtype=bool)
        reached[start] = True
        while (grown := reached | related[reached].any(axis=0)).sum() > reached.sum():
            reached = grown
        labels[reached] = start
        components.append(np.flatnonzero(reached))
    return components


def _deal(groups: list[Any], parts: dict[str, list[int]]) -> None:
    """Gives each group to the part that is furthest below its share of what has been dealt in this call."""
    dealt = dict.fromkeys(parts, 0)
    for group in groups:
        total = sum(dealt.values()) + len(group)
        name = max(parts, key=lambda name: SHARES[name] * total - dealt[name])
        parts[name].extend(int(index) for index in group)
        dealt[name] += len(group)
