"""Bad steps are skipped, rolled back or fatal, and reported with their samples."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.core.test_loop import config, losses, trainer
from tests.core.trainer import text_file
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import StopRequested
from trainer_core.runs import checkpoint_dir
from trainer_core.train.device_transfer import AccumulationWindow
from trainer_core.train.trainer import Trainer


def wanted(folder: Path, **values: object) -> Config:
    small = {
        "batch_size": 4, "eval_steps": 0, "max_steps": 10, "cpu_threads": 1, "save_steps": 2, "keep_last": 9,
        "eval_batches": 1, "perf_steps": 0,
    }  # fmt: skip
    return config(folder, text_file(folder), **{**small, **values})


def order(made: Trainer) -> list[tuple[int, ...]]:
    """The samples of the first epoch's steps."""
    found = [batch.sample_ids for batch in made.train_data.iterate_epoch(0)]
    return found[:20]


def poison(made: Trainer, *windows: tuple[int, ...], factor: float = math.nan) -> None:
    """The gradients of these samples are not numbers (or `factor` times as large)."""
    made.set_up()
    loss = made.engine.loss
    bad = {number for window in windows for number in window}
    made.engine.loss = lambda batch, *scale: loss(batch, *scale) * (factor if bad & set(batch.sample_ids) else 1.0)  # type: ignore[method-assign]


def used(made: Trainer) -> list[tuple[int, ...]]:
    """Records the samples of each step."""
    seen: list[tuple[int, ...]] = []
    step = made._step

    def recording(window: AccumulationWindow) -> None:
        seen.append(window.whole[0].sample_ids)
        step(window)

    made._step = recording  # type: ignore[method-assign]
    return seen


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in made.model.named_parameters()}


def assert_equal(a: Trainer, b: Trainer) -> None:
    for name, weight in weights(a).items():
        assert torch.equal(b.model.get_parameter(name), weight), name


def test_a_step_that_is_not_finite_is_skipped_and_reported_with_its_samples(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, max_steps=6, log_steps=3, save_steps=0))
    third = order(made)[2]
    poison(made, third)
    after: dict[int, dict[str, torch.Tensor]] = {}
    step = made._step

    def watching(window: list) -> None:  # type: ignore[type-arg]
        step(window)
        after[made.state.counters.step] = weights(made)

    made._step = watching  # type: ignore[method-assign]
    made.run()
    assert all(torch.equal(after[2][name], weight) for name, weight in after[3].items())
    assert not all(torch.equal(after[3][name], weight) for name, weight in after[4].items())
    (event,) = kept.of(protocol.BadStep)
    assert (event.step, event.kind, event.action, event.grad_norm) == (3, "not_finite", "skipped", None)
    assert tuple(event.samples) == third
    assert [event.bad_steps for event in kept.of(protocol.Step)] == [1, 0]


def test_the_loss_of_a_skipped_step_is_excluded(tmp_path: Path) -> None:
    plain, plain_kept = trainer(tmp_path, wanted(tmp_path, max_steps=3, log_steps=1, save_steps=0), "plain")
    plain.run()
    made, kept = trainer(tmp_path, wanted(tmp_path, max_steps=3, log_steps=3, save_steps=0))
    poison(made, order(made)[2])
    made.run()
    assert losses(kept)[0] == pytest.approx(sum(losses(plain_kept)[:2]) / 2, rel=1e-6)


def test_a_step_event_of_skipped_steps_has_no_loss(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, max_steps=3, log_steps=1, save_steps=0))
    poison(made, order(made)[1])
    made.run()
    assert [loss is None for loss in losses(kept)] == [False, True, False]


def test_a_gradient_spike_is_skipped_after_the_warmup(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, max_steps=25, spike_factor=8.0, save_steps=0))
    poison(made, *[batch.sample_ids for batch in made.train_data.iterate_epoch(0)][22:23], factor=1000.0)
    made.run()
    (event,) = kept.of(protocol.BadStep)
    assert (event.step, event.kind) == (23, "spike")
    assert event.grad_norm > 8 * event.mean_grad_norm


def test_a_rollback_continues_behind_the_bad_batch(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, on_bad_step="rollback", dropout=0.1))
    shown = order(made)
    poison(made, shown[5])  # step 6; the newest checkpoint before it is that of step 4
    seen = used(made)
    done = made.run()
    assert done.steps == 10
    assert seen == shown[:12]
    (event,) = kept.of(protocol.BadStep)
    assert (event.step, event.action, tuple(event.samples)) == (6, "rolled_back", shown[5])
    (warning,) = kept.of(protocol.Warn)
    assert (warning.code, warning.params) == ("train.rolled_back", {"step": 6, "to": 4})
    assert [event.step for event in kept.of(protocol.Step)] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10]
    # The same as a run that took from step 4 on what stands behind the bad batch.
    other, _ = trainer(tmp_path, wanted(tmp_path, on_bad_step="rollback", dropout=0.1), "other")
    other.load(made.run_dir.checkpoints / "step-00000004", position=6 * 4)
    other.run()
    assert_equal(made, other)


@pytest.mark.parametrize("stop_at", [5, 7])
def test_a_run_with_rollbacks_resumes_exactly(tmp_path: Path, stop_at: int) -> None:
    settings = wanted(tmp_path, on_bad_step="rollback", dropout=0.1, keep_last=1, keep_best=0)
    whole, whole_kept = trainer(tmp_path, settings, "whole")
    shown = order(whole)
    poison(whole, shown[5], shown[7])
    whole.run()
    assert [event.action for event in whole_kept.of(protocol.BadStep)] == ["rolled_back", "rolled_back"]
    made, _ = trainer(tmp_path, settings)
    poison(made, shown[5], shown[7])

    def stop() -> None:  # the first time before it went wrong, or after it went back
        if made.state.counters.step == stop_at:
            raise StopRequested

    made.context.poll = stop  # type: ignore[method-assign]
    with pytest.raises(StopRequested):
        made.run()
    again, kept_again = trainer(tmp_path, settings)
    found, _ = checkpoint_dir.latest_valid(again.run_dir.checkpoints)
    assert found is not None
    again.resume(found)
    poison(again, shown[5], shown[7])
    again.run()
    assert_equal(again, whole)
    by_step = [{event.step: event.loss for event in each.of(protocol.Step)} for each in (whole_kept, kept_again)]
    assert by_step[1].items() <= by_step[0].items()
    assert not [event for event in kept_again.of(protocol.Warn) if event.code == "resume.not_exact"]


def test_without_a_checkpoint_a_bad_step_is_only_skipped(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, on_bad_step="rollback", save_steps=0, max_steps=4))
    poison(made, order(made)[1])
    assert made.run().steps == 4
    assert [event.action for event in kept.of(protocol.BadStep)] == ["skipped"]


def test_repeated_rollbacks_to_one_checkpoint_end_the_run(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, on_bad_step="rollback", save_steps=4, bad_step_limit=3))
    poison(made, *order(made)[5:])
    with pytest.raises(TraindeckError, match="in a row") as caught:
        made.run()
    assert caught.value.code == "train.bad_steps"
    assert [event.action for event in kept.of(protocol.BadStep)] == ["rolled_back"] * 3 + ["stopped"]
    assert checkpoint_dir.list_checkpoints(made.run_dir.checkpoints)[-1].name == "step-00000004"


def test_on_bad_step_stop_saves_nothing(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, on_bad_step="stop"))
    poison(made, order(made)[4])
    with pytest.raises(TraindeckError) as caught:
        made.run()
    assert (caught.value.code, caught.value.exit_code) == ("train.bad_steps", ExitCode.FAILED)
    assert [event.action for event in kept.of(protocol.BadStep)] == ["stopped"]
    assert checkpoint_dir.list_checkpoints(made.run_dir.checkpoints)[-1].name == "step-00000004"


def test_consecutive_bad_steps_end_the_run(tmp_path: Path) -> None:
    made, _ = trainer(tmp_path, wanted(tmp_path, bad_step_limit=3, save_steps=0), "apart")
    shown = order(made)
    poison(made, shown[1], shown[2], shown[4], shown[5])
    assert made.run().steps == 10
    made, kept = trainer(tmp_path, wanted(tmp_path, bad_step_limit=3, save_steps=0))
    poison(made, *shown[1:4])
    with pytest.raises(TraindeckError, match="3 consecutive steps"):
        made.run()
    assert [event.step for event in kept.of(protocol.BadStep)] == [2, 3, 4]


def test_bad_steps_are_detected_before_a_save_even_if_metrics_are_late(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, on_bad_step="rollback", log_steps=1000))
    shown = order(made)
    poison(made, shown[4])
    _read_late(made)
    made.run()
    (event,) = kept.of(protocol.BadStep)
    assert (event.step, event.action) == (5, "rolled_back")
    prompt, _ = trainer(tmp_path, wanted(tmp_path, on_bad_step="rollback"), "prompt")
    poison(prompt, shown[4])
    prompt.run()
    assert_equal(made, prompt)


def _read_late(made: Trainer) -> None:
    """As on a GPU: answers come only when somebody waits for them."""
    answered = made.metrics.completed
    made.metrics.completed = lambda wait=False: answered(wait) if wait else iter(())  # type: ignore[method-assign]


def test_fp16_overflows_are_no_bad_steps(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, on_bad_step="stop", perf_steps=10, save_steps=0))
    made.state.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, enabled=True)
    with torch.no_grad():
        made.model.model.norm.weight.mul_(100.0)  # gradients that are too large for that scale
    made.bad_steps.monitor._scaler = made.metrics._scaler = made.state.scaler
    made.run()
    assert not kept.of(protocol.BadStep)
    (event,) = kept.of(protocol.Performance)
    assert event.overflows > 0
    assert event.loss_scale < 2.0**127
