"""Smoothing of series."""

from __future__ import annotations

import math

import numpy as np
import pytest

from app.core.metrics.smoothing import ExponentialAverage


def noise(count: int, *, gaps: bool = False) -> np.ndarray:
    rng = np.random.default_rng(1)
    y = rng.normal(size=count)
    if gaps:
        y[rng.random(count) < 0.1] = np.nan
        y[:3] = np.nan
    return y


def reference_average(y: list[float], weight: float) -> list[float]:
    """Bias-corrected exponential average by its definition, one value at a time."""
    average, correction, averages = 0.0, 0.0, []
    for value in y:
        if math.isnan(value):
            average, correction = weight * average, weight * correction
        else:
            average, correction = weight * average + (1 - weight) * value, weight * correction + (1 - weight)
        averages.append(average / correction if correction else math.nan)
    return averages


@pytest.mark.parametrize("weight", [0.1, 0.6, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("gaps", [False, True])
def test_smoothing_equals_the_definition(weight: float, gaps: bool) -> None:
    y = noise(70_000, gaps=gaps)  # more than a chunk
    smoothed = ExponentialAverage(weight)
    smoothed.extend(y)
    np.testing.assert_allclose(smoothed.values, reference_average(y.tolist(), weight), rtol=2e-5, atol=2e-6)


def test_incremental_smoothing_equals_smoothing_of_the_complete_series() -> None:
    y = noise(5000, gaps=True)
    complete, incremental = ExponentialAverage(0.9), ExponentialAverage(0.9)
    complete.extend(y)
    for end in (1, 2, 3, 300, 301, 4000, 5000):
        incremental.extend(y[:end])
    np.testing.assert_allclose(incremental.values, complete.values, rtol=1e-6)


def test_smoothing_keeps_a_constant() -> None:
    smoothed = ExponentialAverage(0.9)
    smoothed.extend(np.array([5.0, 5.0, np.nan, 5.0]))
    assert smoothed.values.tolist() == pytest.approx([5.0] * 4)


def test_smoothing_handles_empty_infinite_and_missing_values() -> None:
    def smooth(values: np.ndarray, weight: float = 0.9) -> np.ndarray:
        smoothed = ExponentialAverage(weight)
        smoothed.extend(values)
        return smoothed.values

    assert smooth(np.empty(0)).size == 0
    assert np.isnan(smooth(np.full(4, np.nan))).all()
    assert np.isfinite(smooth(np.array([1e30, -1e30, 1.0]))).all()
    assert np.isfinite(smooth(np.ones(10_000), 1.0)).all()
    gap = np.concatenate(([1.0], np.full(50_000, np.nan), [2.0]))
    assert smooth(gap)[-1] == pytest.approx(2.0)
