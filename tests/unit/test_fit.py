import numpy as np
import pytest

from estimator.fit import Sample, fit, least_samples, one_sided


def samples(count: int, path: str = "plain", noise: float = 0.0, seed: int = 1) -> list[Sample]:
    """A constant of 1 MB and 250 B a token, with noise upwards."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        tokens = float(rng.integers(1, 100_000))
        exact = 1e6 + 250 * tokens
        found.append(
            Sample(path, {"one": 1.0, "tokens": tokens, "idle": tokens**2}, int(exact * (1 + noise * rng.random())))
        )
    return found


def test_coefficients_come_back_and_an_idle_feature_costs_nothing() -> None:
    law = fit(samples(60), ("one", "tokens", "idle"), coverage=0.9)["plain"]
    assert law.coefficients["one"] == pytest.approx(1e6, rel=1e-3)
    assert law.coefficients["tokens"] == pytest.approx(250, rel=1e-3)
    assert law.coefficients["idle"] * 1e10 < 1e4
    assert law.predict_bytes({"one": 1, "tokens": 1000, "idle": 0}) == pytest.approx(1.25e6, rel=1e-3)


def test_no_coefficient_is_negative_even_where_that_would_fit_better() -> None:
    falling = [Sample("plain", {"one": 1.0, "tokens": float(t)}, 2_000_000 - 10 * t) for t in range(1, 1000, 20)]
    law = fit(falling, ("one", "tokens"), coverage=0.9)["plain"]
    assert min(law.coefficients.values()) >= 0


def test_over_many_calibrations_the_bound_covers_new_samples_as_promised() -> None:
    new, missed = samples(500, noise=0.2, seed=2), []
    for seed in range(10, 18):
        law = fit(samples(200, noise=0.2, seed=seed), ("one", "tokens"), coverage=0.95)["plain"]
        missed.append(sum(sample.measured_bytes > law.bound_bytes(sample.features) for sample in new) / len(new))
        assert law.factor < 1.2
    assert 0 < np.mean(missed) < 0.07


def test_paths_do_not_share_constants() -> None:
    padded = [Sample("padded", sample.features, 3 * sample.measured_bytes) for sample in samples(60)]
    laws = fit([*samples(60), *padded], ("one", "tokens"), coverage=0.9)
    assert laws["padded"].coefficients["tokens"] == pytest.approx(3 * laws["plain"].coefficients["tokens"], rel=1e-3)


def test_too_few_samples_for_a_promise_are_refused_with_the_path() -> None:
    with pytest.raises(ValueError, match="path 'plain': 10 samples; 99 are needed"):
        fit(samples(20), ("one", "tokens"), coverage=0.99)


def test_a_feature_that_is_nowhere_is_refused() -> None:
    nothing = [Sample("plain", {"tokens": 0.0}, 1000) for _ in range(40)]
    with pytest.raises(ValueError, match="no sample has any of the features"):
        fit(nothing, ("tokens",), coverage=0.9)


def test_the_maximum_of_n_covers_n_of_n_plus_one() -> None:
    assert one_sided(range(1, 100), 0.99) == 99
    assert [least_samples(coverage) for coverage in (0.5, 0.9, 0.95, 0.99)] == [1, 9, 19, 99]
    assert one_sided(range(1, 20), 0.5) == 10
