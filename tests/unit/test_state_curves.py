"""Series as they are drawn: smoothed, thinned without losing extremes, read at one place, stacked."""

from __future__ import annotations

import math

import numpy as np
import pytest

from app.state.measurements.curves import Curve, stacked
from app.state.measurements.smoothing import Smoothed
from app.state.measurements.table import Table


def table(y: list[float], **more: list[float]) -> Table:
    """Rows at steps 1, 2, 3 …, each of 10 tokens and half a second."""
    made, steps = Table(["y", *more]), np.arange(1.0, len(y) + 1)
    made.extend([steps, 10 * steps, steps / 2, np.array(y), *map(np.array, more.values())])
    return made


def noise(count: int, *, gaps: bool = False) -> np.ndarray:
    rng = np.random.default_rng(1)
    y = rng.normal(size=count)
    if gaps:
        y[rng.random(count) < 0.1] = np.nan
        y[:3] = np.nan
    return y.astype(np.float32)


# --- smoothing ------------------------------------------------------------------------------------------


def slow_ema(y: list[float], weight: float) -> list[float]:
    """The definition, one point after the other."""
    average, known, found = 0.0, 0.0, []
    for value in y:
        if math.isnan(value):
            average, known = weight * average, weight * known
        else:
            average, known = weight * average + (1 - weight) * value, weight * known + (1 - weight)
        found.append(average / known if known else math.nan)
    return found


@pytest.mark.parametrize("weight", [0.1, 0.6, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("gaps", [False, True])
def test_smoothing_equals_its_definition(weight: float, gaps: bool) -> None:
    y = noise(70_000, gaps=gaps)  # more than a chunk
    smoothed = Smoothed(weight)
    smoothed.extend(y)
    np.testing.assert_allclose(smoothed.values, slow_ema(y.tolist(), weight), rtol=2e-5, atol=2e-6)


def test_smoothing_goes_on_where_it_was_as_if_all_had_come_at_once() -> None:
    y = noise(5000, gaps=True)
    whole, parts = Smoothed(0.9), Smoothed(0.9)
    whole.extend(y)
    for end in (1, 2, 3, 300, 301, 4000, 5000):
        parts.extend(y[:end])
    np.testing.assert_allclose(parts.values, whole.values, rtol=1e-6)


def test_smoothing_starts_at_the_first_value_and_leaves_a_constant_alone() -> None:
    smoothed = Smoothed(0.9)
    smoothed.extend(np.array([5.0, 5.0, np.nan, 5.0]))
    assert smoothed.values.tolist() == pytest.approx([5.0] * 4)


def test_smoothing_takes_the_odd_cases() -> None:
    def of(values: np.ndarray, weight: float = 0.9) -> np.ndarray:
        smoothed = Smoothed(weight)
        smoothed.extend(values)
        return smoothed.values

    assert of(np.empty(0)).size == 0
    assert np.isnan(of(np.full(4, np.nan))).all()
    assert np.isfinite(of(np.array([1e30, -1e30, 1.0]))).all()
    assert np.isfinite(of(np.ones(10_000), 1.0)).all()
    gap = np.concatenate(([1.0], np.full(50_000, np.nan), [2.0]))
    assert of(gap)[-1] == pytest.approx(2.0)


# --- what is drawn ----------------------------------------------------------------------------------------


def test_a_short_curve_is_drawn_as_it_is_with_one_more_point_at_each_side() -> None:
    curve = Curve(table([5.0, 4.0, 3.0, 2.0, 1.0]), "y")
    x, y = curve.between("step", 2.5, 3.5)
    assert (x.tolist(), y.tolist()) == ([2.0, 3.0, 4.0], [4.0, 3.0, 2.0])
    assert curve.between("tokens", 0.0, 1e9)[0].tolist() == [10.0, 20.0, 30.0, 40.0, 50.0]


@pytest.mark.parametrize("weight", [0.0, 0.5])
@pytest.mark.parametrize("count", [1000, 65_537, 200_003])
def test_of_many_points_no_extreme_is_lost_wherever_one_looks(count: int, weight: float) -> None:
    curve = Curve(table(noise(count).tolist()), "y", weight)
    for low, high in ((0, count), (17, count // 3), (count // 2, count // 2 + 700), (count - 100, count + 5)):
        x, y = curve.between("step", low, high, most=200)
        assert x.size == y.size <= 204
        inside = curve.y[max(0, low - 1) : high]
        assert y.min() <= inside.min()
        assert y.max() >= inside.max()
        assert np.all(np.diff(x) >= 0)
        assert (x[0], x[-1]) == (pytest.approx(max(1, low), abs=2 * count / 100), x[-1])


def test_points_that_come_later_are_drawn_too_and_those_taken_back_are_not() -> None:
    rows = table(noise(50_000).tolist())
    curve = Curve(rows, "y")
    curve.between("step", 0, 1e9, most=100)
    rows.append((50_001.0, 500_010.0, 25_000.5, 77.0))
    assert curve.between("step", 0, 1e9, most=100)[1].max() == 77.0
    rows.cut_after(40_000)
    x, y = curve.between("step", 0, 1e9, most=100)
    assert x[-1] <= 40_000
    assert y.max() < 77.0
    rows.append((40_001.0, 400_010.0, 20_000.5, -88.0))
    assert curve.between("step", 0, 1e9, most=100)[1].min() == -88.0


@pytest.mark.parametrize("weight", [0.0, 0.9])
def test_a_long_curve_can_be_worked_through_in_turns_and_is_drawn_as_if_all_at_once(weight: float) -> None:
    rows = table(noise(500_000).tolist())
    curve = Curve(rows, "y", weight)
    turns = 1
    while not curve.catch_up():
        turns += 1
    assert turns > 2
    whole = Curve(rows, "y", weight)
    for mine, theirs in zip(curve.between("step", 0, 1e9, 100), whole.between("step", 0, 1e9, 100), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert curve.catch_up()
    rows.cut_after(1000)
    assert curve.catch_up()
    assert curve.y.size == 1000


@pytest.mark.parametrize("count", [0, 1, 100, 131_072, 131_073])
def test_working_through_a_curve_ends_however_long_it_is(count: int) -> None:
    curve = Curve(table(noise(count).tolist()), "y", 0.5)
    assert any(curve.catch_up(means=turn > 5) for turn in range(10))


def test_a_gap_stays_a_gap_when_thinned() -> None:
    y = noise(10_000)
    y[2000:8000] = np.nan
    _, drawn = Curve(table(y.tolist()), "y").between("step", 0, 10_000, most=100)
    assert 0.5 < np.isnan(drawn).mean() < 0.7


def test_the_value_at_a_place_is_that_of_the_nearest_row() -> None:
    curve = Curve(table([5.0, 4.0, math.nan]), "y")
    assert curve.at("step", 1.4) == 5.0
    assert curve.at("tokens", 16.0) == 4.0
    for outside in (0.9, 3.0, 3.1):
        assert math.isnan(curve.at("step", outside))
    assert curve.last() == 4.0


@pytest.mark.parametrize("count", [10, 9_999])
def test_parts_lie_on_top_of_one_another_and_add_up(count: int) -> None:
    y = np.abs(noise(count))
    rows = table(y.tolist(), z=(2 * y).tolist())
    x, edges = stacked([Curve(rows, "y"), Curve(rows, "z")], "step", 0, count, most=64)
    assert x.size == edges[0].size <= 65
    np.testing.assert_allclose(edges[1], 3 * edges[0], rtol=1e-5)
    if count > 64:
        assert edges[0][0] == pytest.approx(y[:256].mean(), rel=1e-5)
