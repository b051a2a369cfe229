"""The metric store: series, axes, resumes and markers."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from app.core.metrics.metric_store import MetricStore
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


def test_events_fill_their_series_on_all_three_axes() -> None:
    store = filled()
    x, y = store.series("train_loss")
    assert x.tolist() == [10, 20, 30, 40, 50]
    assert y.tolist() == pytest.approx([100.0 / number for number in range(10, 51, 10)])
    assert store.series("train_loss", "tokens")[0].tolist() == [1000, 2000, 3000, 4000, 5000]
    assert store.series("train_loss", "time")[0].tolist() == [10, 20, 30, 40, 50]
    assert store.series("time_backward")[1].tolist() == [4.0] * 5
    assert store.series("vram_used.1")[1].tolist() == [7.0] * 5
    assert store.series("vram_used.1")[0].tolist() == [10, 20, 30, 40, 50]  # the last step known
    assert store.series("rss", "time")[0].tolist() == [11, 21, 31, 41, 51]
    assert store.series("eval_loss")[1].tolist() == [21, 11, 1, 11, 21]
    assert (store.gpu_indices(), store.gpu_names) == ([1], {1: "RTX"})


def test_missing_values_are_nan_and_unknown_series_are_empty() -> None:
    store = MetricStore()
    store.add(step(1, 0.0, loss=None))
    assert math.isnan(store.series("train_loss")[1][0])
    assert math.isnan(store.series("mfu")[1][0])
    assert store.last_value("mfu") is None
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


def test_clear_does_not_reuse_versions() -> None:
    store = filled()
    seen = {store.version("train_loss")}
    store.clear()
    seen.add(store.version("train_loss"))
    store.add(step(1, 0.0))
    seen.add(store.version("train_loss"))
    assert len(seen) == 3


def test_a_resume_removes_repeated_steps_and_the_time_between_processes() -> None:
    store = filled()
    store.add(hello(90_000.0, resumed=30))
    assert store.series("train_loss")[0].tolist() == [10, 20, 30]
    assert store.series("vram_used.1")[0].tolist() == [10, 20, 30]
    assert [mark.step for mark in store.checkpoints()] == [10, 20, 30]
    store.add(step(40, 90_004.0))
    assert store.series("train_loss")[0].tolist() == [10, 20, 30, 40]
    times = store.series("train_loss", "time")[0]
    assert times.tolist() == [10, 20, 30, 35]  # the last event before the resume was at 31


def test_returned_views_do_not_change_after_a_resume() -> None:
    store = filled()
    _, y = store.series("train_loss")
    before = y.tolist()
    store.add(hello(90_000.0, resumed=10))
    store.add(step(20, 90_001.0, loss=77.0))
    assert y.tolist() == before


def test_the_best_evaluation_is_updated_after_a_resume() -> None:
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
    return protocol.BadStep(step=number, kind="spike", grad_norm=40.0, mean_grad_norm=1.0, action=action)  # type: ignore[arg-type]


def test_checkpoints_are_a_part_of_the_step_time() -> None:
    store, saving = MetricStore(), step(1, 0.0)
    saving.time_ms.checkpoint = 250.0
    for event in (saving, step(2, 1.0)):  # an older trainer does not tell it: 0
        store.add(event)
    assert store.series("time_checkpoint")[1].tolist() == [250.0, 0.0]


def test_performance_events_have_their_own_series() -> None:
    store = filled()
    store.add(
        protocol.Performance(
            step=50, data_ratio=0.1, compute_ratio=0.8, flops_per_token=1.0, energy_per_million_tokens_j=900.0
        )
    )
    assert store.series("compute_ratio")[1].tolist() == pytest.approx([0.8])
    assert store.last_value("energy_per_million") == 900.0
    assert store.last_value("gradient_noise") is None


def test_a_bad_step_reported_later_is_marked_at_its_step() -> None:
    store = filled()
    store.add(bad(25))
    (mark,) = store.bad_steps()
    assert (mark.kind, mark.step, mark.tokens, mark.time) == ("skipped", 25, 2500.0, 25.0)


def test_a_rolled_back_run_shows_the_bad_step_once_it_reaches_it_again() -> None:
    store = filled()
    store.add(bad(45, "rolled_back"))
    store.add(step(31, 1060.0))
    assert store.series("train_loss")[0].tolist() == [10, 20, 30, 31]
    assert store.bad_steps() == []  # the curve does not reach that far
    store.add(step(50, 1070.0))
    assert [mark.step for mark in store.bad_steps()] == [45]


def test_a_resume_removes_bad_steps_that_are_repeated() -> None:
    store = filled()
    store.add(bad(15))
    store.add(bad(45))
    store.add(hello(90_000.0, resumed=30))
    store.add(step(50, 90_001.0))
    assert [mark.step for mark in store.bad_steps()] == [15]


def test_oom_recoveries_and_resumes_are_marked_at_their_steps() -> None:
    store = filled()
    recovery = protocol.OomRecovery(
        step=25, action="halved", during="forward", batch_size=4, gradient_accumulation_steps=2
    )
    before = store.markers_version()
    store.add(recovery)
    assert store.markers_version() != before
    (mark,) = store.oom_recoveries()
    assert (mark.kind, mark.step, mark.tokens, mark.value) == ("halved", 25, 2500.0, 4.0)
    assert store.resumes() == []
    store.add(hello(90_000.0, resumed=30))
    store.add(step(50, 90_001.0))
    assert [(mark.kind, mark.step, mark.tokens, mark.time) for mark in store.resumes()] == [
        ("resumed", 30, 3000.0, 31.0)
    ]
    store.add(hello(95_000.0, resumed=20))
    store.add(step(50, 95_001.0))
    assert [mark.step for mark in store.resumes()] == [20]  # later ones are repeated
    assert store.oom_recoveries() == []


def test_gpu_series_include_torch_memory_limits_and_thermal_throttling() -> None:
    store = MetricStore()
    host = protocol.Host(ram_used=1, ram_total=2, rss=3, cpu=0.5, disk_free=9)
    for place, throttle in enumerate(([], ["power"], ["power", "hw_thermal"])):
        card = protocol.Gpu(
            index=0, name="RTX", torch_reserved=7, shared_used=8, power_limit_w=300.0, clock_mhz=1900, throttle=throttle
        )
        store.add(protocol.Hardware(t=float(place), gpus=[card], host=host))
    values = {name: store.last_value(f"{name}.0") for name in ("torch_reserved", "shared_used", "power_limit", "clock")}
    assert values == {"torch_reserved": 7.0, "shared_used": 8.0, "power_limit": 300.0, "clock": 1900.0}
    assert store.series("hot.0")[1].tolist() == [0.0, 0.0, 1.0]


def test_a_downsampled_store_keeps_extremes_and_smoothing() -> None:
    store, thin = MetricStore(), MetricStore()
    for each in (store, thin):
        each.add(hello(0.0))
        for number in range(1, 4001):
            each.add(step(number, float(number), loss=50.0 if number == 1234 else 2.0))
        each.add(evaluation(4000, 4000.5, 1.5))
    for _ in thin.iter_downsample(200):
        pass
    x, y = thin.series("train_loss")
    assert x.size <= 200
    assert x[-1] == 4000
    assert y.max() == 50.0
    best = thin.best_eval()
    assert best is not None
    assert best.value == 1.5
    rough, fine = thin.curve("train_loss", 0.99), store.curve("train_loss", 0.99)
    assert rough is not None
    assert fine is not None
    assert rough.weight == pytest.approx(0.99**20)
    assert rough.y[-1] == pytest.approx(fine.y[-1], rel=0.01)


def test_curves_are_cached_until_the_store_is_cleared() -> None:
    store = filled()
    old = store.curve("train_loss", 0.6)
    assert store.curve("train_loss", 0.6) is old
    store.clear()
    assert store.curve("train_loss", 0.6) is not old
    assert store.curve("nonsense") is None


def test_a_hello_event_of_a_new_run_clears_the_store() -> None:
    store = filled()
    store.add(hello(2000.0))
    assert store.series("train_loss")[0].size == 0
    assert store.checkpoints() == []


def test_repeated_steps_without_a_hello_event_replace_the_old_ones() -> None:
    store = filled()
    store.add(step(30, 2000.0, loss=9.0))
    assert store.series("train_loss")[0].tolist() == [10, 20, 30]
    assert store.last_value("train_loss") == 9.0
    assert np.all(np.diff(store.series("train_loss", "time")[0]) >= 0)


def test_adding_many_steps_takes_constant_time() -> None:
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
    assert store.nbytes == (3 * 8 + 13 * 4) * count  # 72 MiB for a million steps
    assert longest < 0.1
    assert each < 50e-6
