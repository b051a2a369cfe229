"""The metric store: series, axes, resumes and markers."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from app.core.metrics.metric_store import MarkerKind, MetricStore
from app.core.metrics.metric_table import AXES, MetricTable, XAxis
from app.pages.plots.plot_specs import OVERVIEW, overview_plots
from tests.events import checkpoint, hello, rollouts, step
from trainer_core import protocol


def evaluation(number: int, t: float, loss: float | None) -> protocol.Eval:
    return protocol.Eval(t=t, step=number, loss=loss, perplexity=None, tokens=1, seconds=1.0)


def hardware(t: float, vram_used: int | None = 7) -> protocol.Hardware:
    host = protocol.Host(ram_used=1, ram_total=2, rss=3, cpu=0.5, disk_free=9)
    return protocol.Hardware(
        t=t, gpus=[protocol.Gpu(index=1, name="RTX", vram_used=vram_used, power_w=80.0)], host=host
    )


def filled_store() -> MetricStore:
    """Steps 10 to 50, an evaluation at each, hardware between them."""
    store = MetricStore()
    store.add(hello(1000.0))
    for number in range(10, 51, 10):
        store.add(step(number, 1000.0 + number, loss=100.0 / number))
        store.add(evaluation(number, 1000.5 + number, loss=abs(30 - number) + 1.0))
        store.add(hardware(1001.0 + number))
        store.add(checkpoint(number))
    return store


def marker_positions(store: MetricStore, kind: MarkerKind, axis: XAxis = "step") -> list[float]:
    return store.marker_points(kind, axis)[0].tolist()


def bad_step(number: int, action: str = "skipped") -> protocol.BadStep:
    return protocol.BadStep(step=number, kind="spike", grad_norm=40.0, mean_grad_norm=1.0, action=action)  # type: ignore[arg-type]


def test_events_fill_their_series_on_all_three_axes() -> None:
    store = filled_store()
    x, y = store.series("train_loss")
    assert x.tolist() == [10, 20, 30, 40, 50]
    assert y.tolist() == pytest.approx([100.0 / number for number in range(10, 51, 10)])
    assert store.series("train_loss", "tokens")[0].tolist() == [1000, 2000, 3000, 4000, 5000]
    assert store.series("train_loss", "time")[0].tolist() == [10, 20, 30, 40, 50]
    assert store.series("time_backward")[1].tolist() == [4.0] * 5
    assert store.series("vram_used.1")[1].tolist() == [7.0] * 5
    assert store.series("vram_used.1")[0].tolist() == [10, 20, 30, 40, 50]  # the last known step
    assert store.series("rss", "time")[0].tolist() == [11, 21, 31, 41, 51]
    assert store.series("eval_loss")[1].tolist() == [21, 11, 1, 11, 21]
    assert store.gpu_indices() == [1]


def test_missing_values_are_nan_and_unknown_series_are_empty() -> None:
    store = MetricStore()
    store.add(step(1, 0.0, loss=None))
    assert math.isnan(store.series("train_loss")[1][0])
    assert math.isnan(store.series("mfu")[1][0])
    assert store.last_value("mfu") is None
    for name in ("vram_used.0", "vram_used.x", "nonsense", "", "."):
        x, y = store.series(name)
        assert x.size == y.size == 0
        store.version(name)  # does not raise


def test_a_version_changes_only_with_its_own_series() -> None:
    store = filled_store()
    names = ("train_loss", "eval_loss", "rss", "vram_used.1")
    before = [store.version(name) for name in names]
    store.add(evaluation(50, 1100.0, 1.0))
    after = [store.version(name) for name in names]
    assert [old != new for old, new in zip(before, after, strict=True)] == [False, True, False, False]


def test_a_resume_removes_repeated_steps_and_the_time_between_processes() -> None:
    store = filled_store()
    store.add(hello(90_000.0, resumed_from_step=30))
    assert store.series("train_loss")[0].tolist() == [10, 20, 30]
    assert store.series("vram_used.1")[0].tolist() == [10, 20, 30]
    assert marker_positions(store, "checkpoint") == [10, 20, 30]
    store.add(step(40, 90_004.0))
    assert store.series("train_loss")[0].tolist() == [10, 20, 30, 40]
    times = store.series("train_loss", "time")[0]
    assert times.tolist() == [10, 20, 30, 35]  # the last event before the resume was at 31


def test_returned_views_do_not_change_after_a_resume() -> None:
    store = filled_store()
    _, y = store.series("train_loss")
    before = y.tolist()
    store.add(hello(90_000.0, resumed_from_step=10))
    store.add(step(20, 90_001.0, loss=77.0))
    assert y.tolist() == before


def test_the_best_evaluation_is_updated_after_a_resume() -> None:
    store = filled_store()
    assert store.best_eval() == (30, 1.0)
    assert store.best_eval("tokens") == (3000.0, 1.0)
    store.add(hello(90_000.0, resumed_from_step=20))
    assert store.best_eval() == (20, 11.0)
    assert marker_positions(store, "best") == [20]
    store.add(hello(90_000.0, resumed_from_step=5))
    assert store.best_eval() is None
    assert marker_positions(store, "best") == []


def test_checkpoints_are_a_part_of_the_step_time() -> None:
    store, saving = MetricStore(), step(1, 0.0)
    saving.time_ms.checkpoint = 250.0
    for event in (saving, step(2, 1.0)):  # older trainers omit the field: 0
        store.add(event)
    assert store.series("time_checkpoint")[1].tolist() == [250.0, 0.0]


def test_a_bad_step_reported_later_is_marked_at_its_step_on_the_curve() -> None:
    store = filled_store()
    store.add(bad_step(25))
    assert [marker_positions(store, "bad_step", axis) for axis in AXES] == [[25], [2500.0], [25.0]]
    assert store.marker_points("bad_step", "step")[1].tolist() == pytest.approx([(5.0 + 100 / 30) / 2])


def test_after_a_rollback_a_bad_step_is_marked_when_its_step_is_reached_again() -> None:
    store = filled_store()
    store.add(bad_step(45, "rolled_back"))
    store.add(step(31, 1060.0))
    assert store.series("train_loss")[0].tolist() == [10, 20, 30, 31]
    assert marker_positions(store, "bad_step") == []  # the curve does not reach that far
    store.add(step(50, 1070.0))
    assert marker_positions(store, "bad_step") == [45]


def test_a_resume_removes_bad_steps_that_are_repeated() -> None:
    store = filled_store()
    store.add(bad_step(15))
    store.add(bad_step(45))
    store.add(hello(90_000.0, resumed_from_step=30))
    store.add(step(50, 90_001.0))
    assert marker_positions(store, "bad_step") == [15]


def test_oom_recoveries_and_resumes_are_marked_at_their_steps() -> None:
    store = filled_store()
    recovery = protocol.OomRecovery(
        step=25, action="halved", during="forward", batch_size=4, gradient_accumulation_steps=2
    )
    before = store.markers_version()
    store.add(recovery)
    assert store.markers_version() != before
    assert marker_positions(store, "oom_recovery", "tokens") == [2500.0]
    assert marker_positions(store, "resume") == []
    store.add(hello(90_000.0, resumed_from_step=30))
    store.add(step(50, 90_001.0))
    assert marker_positions(store, "resume", "tokens") == [3000.0]
    before = store.markers_version()
    store.add(hello(95_000.0, resumed_from_step=20))
    assert store.markers_version() != before  # although the number of markers is the same
    store.add(step(50, 95_001.0))
    assert marker_positions(store, "resume") == [20]  # the resume at step 30 is discarded
    assert marker_positions(store, "oom_recovery") == []


def test_gpu_series_include_torch_memory_limits_and_thermal_throttling() -> None:
    store = MetricStore()
    host = protocol.Host(ram_used=1, ram_total=2, rss=3, cpu=0.5, disk_free=9)
    for second, throttle in enumerate(([], ["power"], ["power", "hw_thermal"])):
        gpu = protocol.Gpu(
            index=0, name="RTX", torch_reserved=7, shared_used=8, power_limit_w=300.0, clock_mhz=1900, throttle=throttle
        )
        store.add(protocol.Hardware(t=float(second), gpus=[gpu], host=host))
    values = {name: store.last_value(f"{name}.0") for name in ("torch_reserved", "shared_used", "power_limit", "clock")}
    assert values == {"torch_reserved": 7.0, "shared_used": 8.0, "power_limit": 300.0, "clock": 1900.0}
    assert store.series("thermal_throttling.0")[1].tolist() == [0.0, 0.0, 1.0]


def test_a_downsampled_store_keeps_extremes_and_smoothing() -> None:
    complete, downsampled = MetricStore(), MetricStore()
    for store in (complete, downsampled):
        store.add(hello(0.0))
        for number in range(1, 4001):
            store.add(step(number, float(number), loss=50.0 if number == 1234 else 2.0))
        store.add(evaluation(4000, 4000.5, 1.5))
    for _ in downsampled.downsample_in_slices(200):
        pass
    x, y = downsampled.series("train_loss")
    assert x.size <= 200
    assert x[-1] == 4000
    assert y.max() == 50.0
    assert downsampled.best_eval() == (4000.0, 1.5)
    assert downsampled.last_value("train_loss", 0.99) == pytest.approx(
        complete.last_value("train_loss", 0.99), rel=0.01
    )


def test_a_hello_event_of_a_new_run_clears_the_store() -> None:
    store = filled_store()
    store.add(hello(2000.0))
    assert store.series("train_loss")[0].size == 0
    assert marker_positions(store, "checkpoint") == []


def test_repeated_steps_without_a_hello_event_replace_the_old_ones() -> None:
    store = filled_store()
    store.add(step(30, 2000.0, loss=9.0))
    assert store.series("train_loss")[0].tolist() == [10, 20, 30]
    assert store.last_value("train_loss") == 9.0
    assert np.all(np.diff(store.series("train_loss", "time")[0]) >= 0)


def test_adding_many_steps_takes_constant_time() -> None:
    store, event, count = MetricStore(), step(0, 0.0), 300_000  # includes the reallocation at 262,144 rows
    longest = 0.0
    start = time.process_time()
    for number in range(1, count + 1):
        event.step, event.t = number, float(number)
        before = time.process_time()
        store.add(event)
        longest = max(longest, time.process_time() - before)
    mean = (time.process_time() - start) / count
    x, y = store.series("train_loss")
    assert x.size == y.size == count
    assert x[-1] == count
    assert store.nbytes == (3 * 8 + 15 * 4) * count  # 76 MiB for a million steps
    assert longest < 0.1
    assert mean < 50e-6


# --- smoothed and downsampled series -----------------------------------------------------------------------


def test_smoothing_follows_appended_and_removed_rows() -> None:
    store, expected = MetricStore(), MetricStore()
    losses = np.random.default_rng(1).normal(size=500).tolist()
    for number, loss in enumerate(losses, 1):
        store.add(step(number, float(number), loss))
    assert store.series("train_loss", smoothing=0.9)[1].size == 500
    store.add(step(401, 600.0, -88.0))
    for number, loss in enumerate([*losses[:400], -88.0], 1):
        expected.add(step(number, float(number), loss))
    x, y = store.series("train_loss", smoothing=0.9)
    assert x.size == y.size == 401
    np.testing.assert_allclose(y, expected.series("train_loss", smoothing=0.9)[1])


def test_the_value_at_a_position_is_that_of_the_nearest_row() -> None:
    store = MetricStore()
    for number, loss in ((1, 5.0), (2, 4.0), (3, None)):
        store.add(step(number, 0.0, loss))
    assert store.value_at("train_loss", "step", 1.4) == 5.0
    assert store.value_at("train_loss", "tokens", 160.0) == 4.0
    assert [store.value_at("train_loss", "step", outside) for outside in (0.9, 3.0, 3.1)] == [None] * 3
    assert store.last_value("train_loss") == 4.0


def test_rewards_have_series_of_their_own_and_decide_which_evaluation_is_the_best() -> None:
    store = filled_store()
    assert not store.has_values("reward")
    assert list(overview_plots(store)) == list(OVERVIEW)
    for number, reward in ((10, 0.25), (20, 0.5), (30, 0.4)):
        store.add(rollouts(number, reward=reward, scores={"exact": reward, "number:0.01": 1.0}))
        event = evaluation(number, float(number), 2.0 + reward)
        event.reward = reward
        store.add(event)
    assert store.series("reward")[1].tolist() == pytest.approx([0.25, 0.5, 0.4])
    assert store.last_value("answer_tokens") == 6.5
    assert store.reward_parts() == ["exact", "number:0.01"]
    assert store.series("score.number:0.01")[1].tolist() == [1.0, 1.0, 1.0]
    assert store.best_eval() == (20.0, 2.5)
    assert "reward" in overview_plots(store)
    store.add(hello(resumed_from_step=15))
    assert store.series("reward")[0].tolist() == store.series("score.exact")[0].tolist() == [10.0]


def metric_table(values: np.ndarray) -> MetricTable:
    rows, x = MetricTable(["y"]), np.arange(float(len(values)))
    rows.extend(np.stack([x, 64 * x, x / 2, values]))
    return rows


@pytest.mark.parametrize("count", [101, 999, 12_345])
def test_downsampled_rows_keep_extremes_at_any_position_and_the_ends_of_the_axis(count: int) -> None:
    noise = np.random.default_rng(7).normal(size=count)
    for position in (0, 1, count // 2, count - 2, count - 1):
        spiked = noise.copy()
        spiked[position], spiked[(position + 7) % count] = 1e6, -1e6
        downsampled = metric_table(spiked).downsampled(100)
        x, y = downsampled.column("step"), downsampled.column("y")
        assert x.size <= 100
        assert (y.max(), y.min()) == (1e6, -1e6)
        assert abs(x[y.argmax()] - position) <= 2 * count / 100 + 1
        assert (x[0], x[-1], downsampled.column("tokens")[-1]) == (0.0, count - 1, 64.0 * (count - 1))
        assert np.all(np.diff(x) >= 0)


def test_downsampled_rows_keep_monotonic_curves_and_gaps() -> None:
    rising = np.arange(10_000.0)
    assert np.all(np.diff(metric_table(rising).downsampled(64).column("y")) >= 0)
    assert np.all(np.diff(metric_table(-rising).downsampled(64).column("y")) <= 0)
    rising[::2] = np.nan
    rising[4000:6000] = np.nan
    downsampled = metric_table(rising).downsampled(1000)
    x, y = downsampled.column("step"), downsampled.column("y")
    assert np.isnan(y[(x > 4100) & (x < 5900)]).all()
    assert np.isfinite(y[(x < 3800) | (x > 6200)]).all()
