"""Bad steps are skipped, rolled back or fatal, and reported with their samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.core.trainer_process import text_file
from tests.core.training import (
    build_trainer,
    copy_weights,
    corrupt_gradients,
    first_epoch,
    losses,
    record_samples,
    tiny_config,
)
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import StopRequested
from trainer_core.runs import checkpoint_dir
from trainer_core.train.trainer import Trainer


def config(folder: Path, **values: object) -> Config:
    small = {
        "batch_size": 4, "eval_steps": 0, "max_steps": 10, "cpu_threads": 1, "save_steps": 2, "keep_last": 9,
        "eval_batches": 1, "perf_steps": 0,
    }  # fmt: skip
    return tiny_config(folder, text_file(folder), **{**small, **values})


def assert_equal_weights(actual: Trainer, expected: Trainer) -> None:
    assert all(map(torch.equal, copy_weights(actual), copy_weights(expected)))


def test_a_step_that_is_not_finite_is_skipped_and_reported_with_its_samples(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, max_steps=6, log_steps=3, save_steps=0))
    third = first_epoch(trainer)[2]
    corrupt_gradients(trainer, third)
    after: dict[int, list[torch.Tensor]] = {}
    step = trainer._step

    def record_weights(window: list) -> None:  # type: ignore[type-arg]
        step(window)
        after[trainer.state.counters.step] = copy_weights(trainer)

    trainer._step = record_weights  # type: ignore[method-assign]
    trainer.run()
    assert all(map(torch.equal, after[2], after[3]))
    assert not all(map(torch.equal, after[3], after[4]))
    (event,) = sink.events_of(protocol.BadStep)
    assert (event.step, event.kind, event.action, event.grad_norm) == (3, "not_finite", "skipped", None)
    assert tuple(event.samples) == third
    assert [event.bad_steps for event in sink.events_of(protocol.Step)] == [1, 0]


def test_the_loss_of_a_skipped_step_is_excluded(tmp_path: Path) -> None:
    reference, reference_sink = build_trainer(
        tmp_path, config(tmp_path, max_steps=3, log_steps=1, save_steps=0), "reference"
    )
    reference.run()
    trainer, sink = build_trainer(tmp_path, config(tmp_path, max_steps=3, log_steps=3, save_steps=0))
    corrupt_gradients(trainer, first_epoch(trainer)[2])
    trainer.run()
    assert losses(sink)[0] == pytest.approx(sum(losses(reference_sink)[:2]) / 2, rel=1e-6)


def test_a_step_event_of_skipped_steps_has_no_loss(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, max_steps=3, log_steps=1, save_steps=0))
    corrupt_gradients(trainer, first_epoch(trainer)[1])
    trainer.run()
    assert [loss is None for loss in losses(sink)] == [False, True, False]


def test_a_gradient_spike_is_skipped_after_the_warmup(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, max_steps=25, spike_factor=8.0, save_steps=0))
    corrupt_gradients(trainer, first_epoch(trainer, 23)[22], factor=1000.0)
    trainer.run()
    (event,) = sink.events_of(protocol.BadStep)
    assert (event.step, event.kind) == (23, "spike")
    assert event.grad_norm > 8 * event.mean_grad_norm


def test_a_rollback_continues_after_the_bad_batch(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, on_bad_step="rollback", dropout=0.1))
    batches = first_epoch(trainer)
    corrupt_gradients(trainer, batches[5])  # step 6; the newest checkpoint before it is that of step 4
    used_samples = record_samples(trainer)
    done = trainer.run()
    assert done.steps == 10
    assert used_samples == batches[:12]
    (event,) = sink.events_of(protocol.BadStep)
    assert (event.step, event.action, tuple(event.samples)) == (6, "rolled_back", batches[5])
    (warning,) = sink.events_of(protocol.Warn)
    assert (warning.code, warning.params) == ("train.rolled_back", {"step": 6, "to": 4})
    assert [event.step for event in sink.events_of(protocol.Step)] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10]
    # Equals a run that continues from the checkpoint of step 4 after the bad batch.
    other, _ = build_trainer(tmp_path, config(tmp_path, on_bad_step="rollback", dropout=0.1), "other")
    other.load(trainer.run_dir.checkpoints / "step-00000004", position=6 * 4)
    other.run()
    assert_equal_weights(trainer, other)


@pytest.mark.parametrize("stop_at", [5, 7])
def test_a_run_with_rollbacks_resumes_exactly(tmp_path: Path, stop_at: int) -> None:
    settings = config(tmp_path, on_bad_step="rollback", dropout=0.1, keep_last=1, keep_best=0)
    uninterrupted, uninterrupted_sink = build_trainer(tmp_path, settings, "uninterrupted")
    batches = first_epoch(uninterrupted)
    corrupt_gradients(uninterrupted, batches[5], batches[7])
    uninterrupted.run()
    assert [event.action for event in uninterrupted_sink.events_of(protocol.BadStep)] == ["rolled_back", "rolled_back"]
    trainer, _ = build_trainer(tmp_path, settings)
    corrupt_gradients(trainer, batches[5], batches[7])

    def stop() -> None:  # before the bad step, or after the rollback
        if trainer.state.counters.step == stop_at:
            raise StopRequested

    trainer.context.poll = stop  # type: ignore[method-assign]
    with pytest.raises(StopRequested):
        trainer.run()
    resumed, resumed_sink = build_trainer(tmp_path, settings)
    checkpoint, _ = checkpoint_dir.latest_valid(resumed.run_dir.checkpoints)
    assert checkpoint is not None
    resumed.resume(checkpoint)
    corrupt_gradients(resumed, batches[5], batches[7])
    resumed.run()
    assert_equal_weights(resumed, uninterrupted)
    by_step = [
        {event.step: event.loss for event in each.events_of(protocol.Step)}
        for each in (uninterrupted_sink, resumed_sink)
    ]
    assert by_step[1].items() <= by_step[0].items()
    assert not [event for event in resumed_sink.events_of(protocol.Warn) if event.code == "resume.not_exact"]


def test_without_a_checkpoint_a_bad_step_is_only_skipped(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, on_bad_step="rollback", save_steps=0, max_steps=4))
    corrupt_gradients(trainer, first_epoch(trainer)[1])
    assert trainer.run().steps == 4
    assert [event.action for event in sink.events_of(protocol.BadStep)] == ["skipped"]


def test_repeated_rollbacks_to_one_checkpoint_end_the_run(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, on_bad_step="rollback", save_steps=4, bad_step_limit=3))
    corrupt_gradients(trainer, *first_epoch(trainer)[5:])
    with pytest.raises(TraindeckError, match="consecutive steps") as error:
        trainer.run()
    assert error.value.code == "train.bad_steps"
    assert [event.action for event in sink.events_of(protocol.BadStep)] == ["rolled_back"] * 3 + ["stopped"]
    assert checkpoint_dir.list_checkpoints(trainer.run_dir.checkpoints)[-1].name == "step-00000004"


def test_on_bad_step_stop_saves_nothing(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, on_bad_step="stop"))
    corrupt_gradients(trainer, first_epoch(trainer)[4])
    with pytest.raises(TraindeckError) as error:
        trainer.run()
    assert (error.value.code, error.value.exit_code) == ("train.bad_steps", ExitCode.FAILED)
    assert [event.action for event in sink.events_of(protocol.BadStep)] == ["stopped"]
    assert checkpoint_dir.list_checkpoints(trainer.run_dir.checkpoints)[-1].name == "step-00000004"


def test_consecutive_bad_steps_end_the_run(tmp_path: Path) -> None:
    trainer, _ = build_trainer(tmp_path, config(tmp_path, bad_step_limit=3, save_steps=0), "apart")
    batches = first_epoch(trainer)
    corrupt_gradients(trainer, batches[1], batches[2], batches[4], batches[5])
    assert trainer.run().steps == 10
    trainer, sink = build_trainer(tmp_path, config(tmp_path, bad_step_limit=3, save_steps=0))
    corrupt_gradients(trainer, *batches[1:4])
    with pytest.raises(TraindeckError, match="3 consecutive steps"):
        trainer.run()
    assert [event.step for event in sink.events_of(protocol.BadStep)] == [2, 3, 4]


def test_bad_steps_are_detected_before_a_save_even_if_metrics_are_late(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, on_bad_step="rollback", log_steps=1000))
    batches = first_epoch(trainer)
    corrupt_gradients(trainer, batches[4])
    delay_metrics(trainer)
    trainer.run()
    (event,) = sink.events_of(protocol.BadStep)
    assert (event.step, event.action) == (5, "rolled_back")
    on_time, _ = build_trainer(tmp_path, config(tmp_path, on_bad_step="rollback"), "on_time")
    corrupt_gradients(on_time, batches[4])
    on_time.run()
    assert_equal_weights(trainer, on_time)


def delay_metrics(trainer: Trainer) -> None:
    """Metrics complete only when waited for, as on a slow GPU."""
    completed = trainer.metrics.completed
    trainer.metrics.completed = lambda wait=False: completed(wait) if wait else iter(())  # type: ignore[method-assign]


def test_fp16_overflows_are_not_bad_steps(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, on_bad_step="stop", perf_steps=10, save_steps=0))
    trainer.state.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, enabled=True)
    with torch.no_grad():
        trainer.model.model.norm.weight.mul_(100.0)  # gradients that are too large for that scale
    trainer.bad_steps.monitor._scaler = trainer.metrics._scaler = trainer.state.scaler
    trainer.run()
    assert not sink.events_of(protocol.BadStep)
    (event,) = sink.events_of(protocol.Performance)
    assert event.overflows > 0
    assert event.loss_scale < 2.0**127
