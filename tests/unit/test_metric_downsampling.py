"""Min-max downsampling of long series."""

from __future__ import annotations

import numpy as np
import pytest

from app.core.metrics.downsampling import downsample_minmax
from app.core.metrics.table import MetricTable


def series(count: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(count, dtype=float)
    return x[None], np.random.default_rng(7).normal(size=(1, count))


@pytest.mark.parametrize("count", [100, 101, 999, 1000, 12_345])
def test_extremes_are_kept_at_any_position(count: int) -> None:
    axes, values = series(count)
    for place in (0, 1, count // 2, count - 2, count - 1):
        spiked = values.copy()
        spiked[0, place], spiked[0, (place + 7) % count] = 1e6, -1e6
        x, y = downsample_minmax(axes, spiked, 100)
        assert x.shape == y.shape
        assert x.shape[1] <= 100
        assert y.max() == 1e6
        assert y.min() == -1e6
        assert abs(x[0, y[0].argmax()] - place) <= 2 * count / 100 + 1


def test_the_axis_keeps_its_ends_and_order() -> None:
    axes, values = series(12_345)
    x, _ = downsample_minmax(axes, values, 100)
    assert (x[0, 0], x[0, -1]) == (0.0, 12_344.0)
    assert np.all(np.diff(x[0]) > 0)


def test_monotonic_curves_stay_monotonic() -> None:
    axes, _ = series(10_000)
    _, (falling, rising) = downsample_minmax(axes, np.stack((-axes[0], axes[0])), 64)
    assert np.all(np.diff(falling) <= 0)
    assert np.all(np.diff(rising) >= 0)


def test_nan_is_ignored_and_gaps_are_kept() -> None:
    axes, values = series(1000)
    values[0, ::2] = np.nan
    values[0, 400:600] = np.nan
    x, y = downsample_minmax(axes, values, 100)
    assert np.isnan(y[0, (x[0] > 410) & (x[0] < 590)]).all()
    assert np.isfinite(y[0, (x[0] < 380) | (x[0] > 620)]).all()


def test_short_series_are_unchanged() -> None:
    axes, values = series(100)
    assert downsample_minmax(axes, values, 100) == (axes, values)


def test_a_downsampled_table_has_the_extremes_and_the_end_of_the_whole_one() -> None:
    whole = MetricTable(("loss",))
    count = 3000
    losses = np.ones(count)
    losses[1777], losses[42] = 50.0, np.nan
    whole.extend([np.arange(count), np.arange(count) * 64.0, np.arange(count) * 0.5, losses])
    downsampled = whole.downsampled(200)
    assert downsampled.length <= 200
    assert downsampled.column("loss").max() == 50.0
    assert downsampled.column("tokens")[-1] == (count - 1) * 64.0
    assert downsampled.nbytes < whole.nbytes / 10
