"""The metric store and its smoothing."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from app.state.metrics import MetricStore, ema
from trainer_core import protocol


def hello(t: float, resumed: int | None = None) -> protocol.Hello:
    return protocol.Hello(t=t, pid=1, run_dir="r", traindeck="0", python="3", torch="2", resumed_from_step=resumed)


def step(number: int, t: float, loss: float | None = 1.0) -> protocol.Step:
    spent = protocol.StepTime(data=1, transfer=2, forward=3, backward=4, optimizer=5, other=6)
    return protocol.Step(
        t=t,
        step=number,
        epoch=0.1,
        tokens=100 * number,
        samples=number,
        loss=loss,
        learning_rate=1e-3,
        tokens_per_s=50.0,
        samples_per_s=5.0,
        time_ms=spent,
    )


def evaluation(number: int, t: float, loss: float | None) -> protocol.Eval:
    return protocol.Eval(t=t, step=number, loss=loss, perplexity=None, tokens=1, seconds=1.0)


def hardware(t: float, used: int | None = 7) -> protocol.Hardware:
    host = protocol.Host(ram_used=1, ram_total=2, rss=3, cpu=0.5, disk_free=9)
    return protocol.Hardware(t=t, gpus=[protocol.Gpu(index=1, name="RTX", vram_used=used, power_w=80.0)], host=host)


def filled() -> MetricStore:
    """Steps 10 to 50, an evaluation at each, hardware between them."""
    store = MetricStore()
    store.add(hello(1000.0))
    for number in range(10, 51, 10):
        store.add(step(number, 1000.0 + number, loss=100.0 / number))
        store.add(evaluation(number, 1000.5 + number, loss=abs(30 - number) + 1.0))
        store.add(hardware(1001.0 + number))
        store.add(protocol.Checkpoint(step=number, path=f"s{number}", bytes=1, seconds=1.0, kind="regular"))
    return store


def test_every_kind_of_event_fills_its_series_on_all_three_axes() -> None:
    store = filled()
    x, y = store.series("train_loss")
    assert x.tolist() == [10, 20, 30, 40, 50]
    assert y.tolist() == [100.0 / number for number in range(10, 51, 10)]
    assert store.series("train_loss", "tokens")[0].tolist() == [1000, 2000, 3000, 4000, 5000]
    assert store.series("train_loss", "time")[0].tolist() == [10, 20, 30, 40, 50]
    assert store.series("time_backward")[1].tolist() == [4.0] * 5
    assert store.series("vram_used.1")[1].tolist() == [7.0] * 5
    assert store.series("vram_used.1")[0].tolist() == [10, 20, 30, 40, 50]  # the last step known
    assert store.series("rss", "time")[0].tolist() == [11, 21, 31, 41, 51]
    assert store.series("eval_loss")[1].tolist() == [21, 11, 1, 11, 21]
    assert (store.gpus(), store.gpu_names) == ([1], {1: "RTX"})


def test_what_was_not_told_is_nan_and_unknown_names_are_empty() -> None:
    store = MetricStore()
    store.add(step(1, 0.0, loss=None))
    assert math.isnan(store.series("train_loss")[1][0])
    assert math.isnan(store.series("mfu")[1][0])
    assert store.last("mfu") is None
    for name in ("vram_used.0", "vram_used.x", "nonsense", "", "."):
        x, y = store.series(name)
        assert x.size == y.size == 0
        store.version(name)


def test_a_version_changes_only_with_its_own_series() -> None:
    store = filled()
    names = ("train_loss", "eval_loss", "rss", "vram_used.1")
    before = [store.version(name) for name in names]
    store.add(evaluation(50, 1100.0, 1.0))
    after = [store.version(name) for name in names]
    assert [old != new for old, new in zip(before, after, strict=True)] == [False, True, False, False]


def test_no_version_comes_back_after_clear() -> None:
    store = filled()
    seen = {store.version("train_loss")}
    store.clear()
    seen.add(store.version("train_loss"))
    store.add(step(1, 0.0))
    seen.add(store.version("train_loss"))
    assert len(seen) == 3


def test_a_resumed_run_cuts_off_what_it_does_again_and_leaves_out_the_night_between() -> None:
    store = filled()
    store.add(hello(90_000.0, resumed=30))
    assert store.series("train_loss")[0].tolist() == [10, 20, 30]
    assert store.series("vram_used.1")[0].tolist() == [10, 20, 30]
    assert [mark.step for mark in store.checkpoints()] == [10, 20, 30]
    store.add(step(40, 90_004.0))
    assert store.series("train_loss")[0].tolist() == [10, 20, 30, 40]
    times = store.series("train_loss", "time")[0]
    assert times.tolist() == [10, 20, 30, 35]  # the last thing kept was at 31


def test_views_handed_out_before_a_cut_stay_as_they_were() -> None:
    store = filled()
    _, y = store.series("train_loss")
    before = y.tolist()
    store.add(hello(90_000.0, resumed=10))
    store.add(step(20, 90_001.0, loss=77.0))
    assert y.tolist() == before


def test_the_best_evaluation_is_marked_and_found_again_after_a_cut() -> None:
    store = filled()
    best = store.best_eval()
    assert best is not None
    assert (best.step, best.value, best.x("tokens")) == (30, 1.0, 3000.0)
    store.add(hello(90_000.0, resumed=20))
    best = store.best_eval()
    assert best is not None
    assert (best.step, best.value) == (20, 11.0)
    store.add(hello(90_000.0, resumed=5))
    assert store.best_eval() is None


def bad(number: int, action: str = "skipped") -> protocol.BadStep:
    return protocol.BadStep(step=number, kind="spike", grad_norm=40.0, usual=1.0, action=action)  # type: ignore[arg-type]


def test_saving_has_its_own_part_of_a_steps_time() -> None:
    store, saving = MetricStore(), step(1, 0.0)
    saving.time_ms.checkpoint = 250.0
    for event in (saving, step(2, 1.0)):  # an older trainer does not tell it: 0
        store.add(event)
    assert store.series("time_checkpoint")[1].tolist() == [250.0, 0.0]


def test_performance_has_series_of_its_own_interval() -> None:
    store = filled()
    store.add(
        protocol.Performance(
            step=50, data_ratio=0.1, compute_ratio=0.8, flops_per_token=1.0, energy_per_million_tokens_j=900.0
        )
    )
    assert store.series("compute_ratio")[1].tolist() == [0.8]
    assert store.last("energy_per_million") == 900.0
    assert store.last("gradient_noise") is None


def test_a_bad_step_is_marked_where_it_was_though_it_is_told_later() -> None:
    store = filled()
    store.add(bad(25))
    (mark,) = store.bad_steps()
    assert (mark.kind, mark.step, mark.tokens, mark.time) == ("skipped", 25, 2500.0, 25.0)


def test_a_run_that_went_back_keeps_the_mark_and_shows_it_once_it_is_there_again() -> None:
    store = filled()
    store.add(bad(45, "rolled_back"))
    store.add(step(31, 1060.0))
    assert store.series("train_loss")[0].tolist() == [10, 20, 30, 31]
    assert store.bad_steps() == []  # the curve does not reach that far
    store.add(step(50, 1070.0))
    assert [mark.step for mark in store.bad_steps()] == [45]


def test_a_resumed_run_forgets_the_bad_steps_that_it_does_again() -> None:
    store = filled()
    store.add(bad(15))
    store.add(bad(45))
    store.add(hello(90_000.0, resumed=30))
    store.add(step(50, 90_001.0))
    assert [mark.step for mark in store.bad_steps()] == [15]


def test_a_hello_of_a_new_run_begins_anew() -> None:
    store = filled()
    store.add(hello(2000.0))
    assert store.series("train_loss")[0].size == 0
    assert store.checkpoints() == []


def test_steps_that_come_again_without_a_hello_replace_the_old_ones() -> None:
    store = filled()
    store.add(step(30, 2000.0, loss=9.0))
    assert store.series("train_loss")[0].tolist() == [10, 20, 30]
    assert store.last("train_loss") == 9.0
    assert np.all(np.diff(store.series("train_loss", "time")[0]) >= 0)


def test_many_steps_fit_and_none_of_them_takes_long() -> None:
    store, event, count = MetricStore(), step(0, 0.0), 300_000  # over the growth at 262,144 rows, the largest here
    longest = 0.0
    began = time.process_time()
    for number in range(1, count + 1):
        event.step, event.t = number, float(number)
        before = time.process_time()
        store.add(event)
        longest = max(longest, time.process_time() - before)
    each = (time.process_time() - began) / count
    print(f"{1e6 * each:.1f} us each, longest {1000 * longest:.1f} ms")  # noqa: T201
    x, y = store.series("train_loss")
    assert x.size == y.size == count
    assert x[-1] == count
    assert store.nbytes == 17 * 8 * count  # 130 MiB for a million steps
    assert longest < 0.1
    assert each < 50e-6


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
def test_smoothing_equals_its_definition(weight: float) -> None:
    rng = np.random.default_rng(1)
    y = rng.normal(size=3000)
    y[rng.random(3000) < 0.1] = np.nan
    y[:3] = np.nan
    np.testing.assert_allclose(ema(y, weight), slow_ema(y.tolist(), weight), rtol=1e-10, atol=1e-12)


def test_smoothing_starts_at_the_first_value_and_leaves_a_constant_alone() -> None:
    assert ema(np.array([5.0, 5.0, np.nan, 5.0]), 0.9).tolist() == pytest.approx([5.0] * 4)


def test_no_smoothing_is_a_copy() -> None:
    y = np.array([1.0, np.nan, 3.0])
    smoothed = ema(y, 0.0)
    np.testing.assert_array_equal(smoothed, y)
    assert smoothed is not y


def test_smoothing_takes_the_odd_cases() -> None:
    assert ema(np.empty(0), 0.9).size == 0
    assert np.isnan(ema(np.full(4, np.nan), 0.9)).all()
    assert np.isfinite(ema(np.array([1e300, -1e300, 1.0]), 0.9)).all()
    assert np.isfinite(ema(np.ones(10_000), 1.0)).all()


def test_smoothing_a_hundred_thousand_points_fits_between_two_frames() -> None:
    y = np.random.default_rng(2).normal(size=100_000)
    best = math.inf
    for _ in range(5):
        before = time.perf_counter()
        ema(y, 0.99)
        best = min(best, time.perf_counter() - before)
    print(f"{1000 * best:.1f} ms")  # noqa: T201
    assert best < 0.05
