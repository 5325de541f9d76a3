"""A law learned from measured samples: bytes as a sum of declared features, and a bound that is rarely exceeded.

For models whose tensors nobody has written down. Paths that differ in kind (a mask or none, another kernel) are fitted
apart. Half of a path's samples give the coefficients, none of them negative, so that more work never costs less; the
other half gives the bound by split conformal prediction (Vovk et al. 2005): of n ratios of measured to predicted, the
k-th smallest, k = ceil((n + 1) x coverage), covers a new sample of the same kind with at least that probability,
whatever the distribution. Nothing is promised outside of what was sampled. Features are few: every subset is tried.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np


@dataclass(frozen=True)
class Sample:
    """One measured run."""

    path: str
    features: Mapping[str, float]
    """Declared feature -> its value, such as tokens or pixels; 0 or more."""
    measured_bytes: int


@dataclass(frozen=True)
class Law:
    """Bytes of one path."""

    coefficients: Mapping[str, float]
    """Feature -> bytes for one unit of it."""
    factor: float
    """Bound over prediction."""
    coverage: float
    """Share of new samples that the bound is promised to cover."""

    def predict_bytes(self, features: Mapping[str, float]) -> int:
        """The expected bytes; raises KeyError for a feature that is missing."""
        return math.ceil(sum(each * features[name] for name, each in self.coefficients.items()))

    def bound_bytes(self, features: Mapping[str, float]) -> int:
        """The bytes that are exceeded at most once in ``1 / (1 - coverage)`` times."""
        return math.ceil(self.factor * self.predict_bytes(features))


def fit(samples: Sequence[Sample], features: Sequence[str], coverage: float, seed: int = 0) -> dict[str, Law]:
    """Path -> its law; a feature that is always 1 plays the constant.

    `seed` decides which half of the samples a run falls into. Raises ValueError, naming the path, where there are too
    few samples for `coverage` or none of the features explains them.
    """
    paths: dict[str, list[Sample]] = {}
    for sample in samples:
        paths.setdefault(sample.path, []).append(sample)
    return {path: _fit_path(path, found, features, coverage, seed) for path, found in paths.items()}


def least_samples(coverage: float) -> int:
    """Samples that a bound of that coverage needs at the least."""
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def one_sided(scores: Sequence[float], coverage: float) -> float:
    """The score that a new one of the same kind does not exceed with probability `coverage`.

    Raises ValueError when there are fewer scores than such a promise takes.
    """
    if len(scores) < least_samples(coverage):
        raise ValueError(f"{len(scores)} samples; {least_samples(coverage)} are needed for a coverage of {coverage:g}")
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return sorted(scores)[rank - 1]


def _fit_path(path: str, samples: Sequence[Sample], features: Sequence[str], coverage: float, seed: int) -> Law:
    order = np.random.default_rng(seed).permutation(len(samples))
    learned, judged = ([samples[index] for index in half] for half in np.array_split(order, 2))
    try:
        coefficients = dict(zip(features, _non_negative(learned, features), strict=True))
        scores = [sample.measured_bytes / _predict(coefficients, sample) for sample in judged]
        return Law(coefficients, one_sided(scores, coverage), coverage)
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"path {path!r}: {error}") from None


def _predict(coefficients: Mapping[str, float], sample: Sample) -> float:
    return sum(each * sample.features[name] for name, each in coefficients.items())


def _non_negative(samples: Sequence[Sample], features: Sequence[str]) -> list[float]:
    """Least squares of the relative error under ``coefficients >= 0``: the best of all subsets that stay positive."""
    rows = np.array([[sample.features[name] / sample.measured_bytes for name in features] for sample in samples])
    best, least = None, math.inf
    for size in range(1, len(features) + 1):
        for chosen in combinations(range(len(features)), size):
            columns = rows[:, chosen]
            scale = np.linalg.norm(columns, axis=0)
            if not scale.all():
                continue
            found = np.linalg.lstsq(columns / scale, np.ones(len(rows)), rcond=None)[0] / scale
            error = float(np.linalg.norm(columns @ found - 1))
            if found.min() >= 0 and error < least:
                best, least = dict(zip(chosen, map(float, found), strict=True)), error
    if best is None:
        raise ValueError("no sample has any of the features")
    return [best.get(index, 0.0) for index in range(len(features))]
