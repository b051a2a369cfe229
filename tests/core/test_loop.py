"""Training loop: accumulation, evaluation, saving and resume."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.core.trainer_process import text_file
from tests.core.training import build_trainer, losses, pairs_file, tiny_config
from trainer_core import protocol
from trainer_core.config import ConfigLayer, resolve
from trainer_core.data.batch import Batch
from trainer_core.progress import StopRequested
from trainer_core.runs import checkpoint_dir
from trainer_core.train.device import Precision, configure_arithmetic
from trainer_core.train.schedule import Schedule
from trainer_core.train.trainer import Trainer

CPU = torch.device("cpu")


@pytest.mark.parametrize("chunked", ["on", "off"])
def test_fp16_passes_the_gradient_scale_to_the_loss(tmp_path: Path, chunked: str) -> None:
    """In every micro-batch, also after a micro-batch is halved because memory ran out."""
    config = tiny_config(
        tmp_path, pairs_file(tmp_path), gradient_accumulation_steps=2, chunked_loss=chunked, eval_steps=0
    )
    trainer, sink = build_trainer(tmp_path, config, precision=Precision.from_name("fp16", CPU))
    trainer.set_up()
    loss = trainer.engine.loss
    expected: list[torch.Tensor] = []
    received: list[torch.Tensor] = []

    def loss_with_hook(batch: Batch, grad_scale: torch.Tensor) -> torch.Tensor:
        if trainer.state.counters.step == 2 and batch.input_ids.shape[0] > 6:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        summed = loss(batch, grad_scale)
        expected.append(grad_scale)
        summed.register_hook(received.append)
        return summed

    trainer.engine.loss = loss_with_hook  # type: ignore[method-assign,assignment]
    for _ in range(4):
        trainer.step()
    trainer.train_data.close(), trainer.validation_data.close()
    assert [event.action for event in sink.events_of(protocol.OomRecovery)] == ["halved"]
    assert len(received) == 2 + 2 + 4 + 4
    assert torch.equal(torch.stack(expected), torch.stack(received))
    assert all(weight.isfinite().all() for weight in trainer.model.parameters())


@pytest.mark.parametrize("data", [text_file, pairs_file], ids=["text", "pairs of different lengths"])
def test_accumulating_small_batches_equals_one_large_batch(tmp_path: Path, data: object) -> None:
    path = data(tmp_path)  # type: ignore[operator]
    large, large_sink = build_trainer(tmp_path, tiny_config(tmp_path, path), "large")
    small, small_sink = build_trainer(
        tmp_path, tiny_config(tmp_path, path, batch_size=4, gradient_accumulation_steps=3), "small"
    )
    large.run(), small.run()
    assert losses(small_sink) == pytest.approx(losses(large_sink), rel=1e-4)
    for name, weight in large.model.named_parameters():
        torch.testing.assert_close(small.model.get_parameter(name), weight, rtol=2e-2, atol=2e-4)


def test_the_last_window_of_an_epoch_is_short_and_every_sample_is_used_once(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path, pairs_file(tmp_path), batch_size=8, gradient_accumulation_steps=3, max_steps=0, max_epochs=2
    )
    trainer, sink = build_trainer(tmp_path, config)
    samples = trainer.train_data.samples
    assert -(-trainer.train_data.samples // trainer.config.batch_size) % 3 != 0, "the data must end in a short window"
    done = trainer.run()
    steps = sink.events_of(protocol.Step)
    assert done.steps == 2 * trainer.steps_per_epoch == len(steps)
    assert steps[trainer.steps_per_epoch - 1].samples == samples
    assert steps[-1].samples == 2 * samples
    assert steps[-1].epoch == 2


def test_training_lowers_training_and_validation_loss(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, tiny_config(tmp_path, text_file(tmp_path), max_steps=60, log_steps=10))
    trainer.run()
    assert losses(sink)[-1] < 0.6 * losses(sink)[0]
    evals = sink.events_of(protocol.Eval)
    assert evals[-1].loss < evals[0].loss
    assert evals[-1].best


def test_a_run_without_a_better_eval_loss_ends_early_and_a_resumed_one_at_the_same_step(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path, text_file(tmp_path), learning_rate=1.0, eval_steps=1, save_steps=1, keep_last=50, max_steps=50,
        early_stop_patience=2, sample_steps=1, sample_prompts=["a"], sample_tokens=1,
    )  # fmt: skip
    whole, sink = build_trainer(tmp_path, config, "whole")
    done = whole.run()
    best = next(event.step for event in reversed(sink.events_of(protocol.Eval)) if event.best)
    assert (done.reason, done.steps, done.total_steps) == ("early_stop", best + 2, 50)
    assert [event.step for event in sink.events_of(protocol.Sample)] == list(range(1, done.steps + 1))
    infos = checkpoint_dir.list_infos(whole.run_dir.checkpoints)
    assert [(info.step, info.kind) for info in infos][-1] == (done.steps, "final")
    for info in infos[-2:]:
        resumed, later = build_trainer(tmp_path, config, f"resumed {info.step}")
        resumed.resume(info.path)
        again = resumed.run()
        assert (again.reason, again.steps, again.final_loss) == ("early_stop", done.steps, done.final_loss)
        assert losses(later) == losses(sink)[info.step :]


def test_step_sections_sum_to_the_wall_time(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, tiny_config(tmp_path, text_file(tmp_path), max_steps=20, log_steps=5))
    trainer.run()
    totals = []
    for event in sink.events_of(protocol.Step):
        parts = event.time_ms
        totals.append(parts.data + parts.transfer + parts.forward + parts.backward + parts.optimizer + parts.other)
        assert parts.forward > 0
        assert parts.other < 0.2 * totals[-1]
    assert sum(totals) * 5 / 1000 == pytest.approx(trainer.state.counters.seconds, rel=0.02)


def test_evaluation_and_samples_do_not_change_the_weights(tmp_path: Path) -> None:
    data = text_file(tmp_path)
    reference, _ = build_trainer(tmp_path, tiny_config(tmp_path, data, eval_steps=0, dropout=0.2), "reference")
    evaluated, sink = build_trainer(
        tmp_path, tiny_config(tmp_path, data, eval_steps=1, sample_steps=1, dropout=0.2), "evaluated"
    )
    configure_arithmetic(reference.config, CPU)
    reference.run()
    configure_arithmetic(reference.config, CPU)
    evaluated.run()
    assert len(sink.events_of(protocol.Eval)) == 6
    assert len(sink.events_of(protocol.Sample)) >= 6
    for name, weight in reference.model.named_parameters():
        assert torch.equal(evaluated.model.get_parameter(name), weight), name


def test_an_evaluation_at_the_start_measures_the_initial_weights(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, pairs_file(tmp_path), eval_on_start=True, max_steps=4)
    trainer, sink = build_trainer(tmp_path, config)
    initial = trainer.evaluation_pass().run(trainer.context, trainer.context.poll).loss
    trainer.run()
    evals = sink.events_of(protocol.Eval)
    assert [event.step for event in evals] == [0, 4]
    assert evals[0].loss == initial


def test_an_evaluation_interrupted_by_a_stop_is_repeated_on_resume(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, text_file(tmp_path))
    trainer, sink = build_trainer(tmp_path, config)
    polls = iter([True])

    def stop_in_evaluation() -> None:
        if trainer.state.counters.step == 4 and next(polls, False):
            raise StopRequested

    trainer.context.poll = stop_in_evaluation  # type: ignore[method-assign]
    with pytest.raises(StopRequested):
        trainer.run()
    assert [event.step for event in sink.events_of(protocol.Eval)] == []
    resumed, resumed_sink = build_trainer(tmp_path, config)
    checkpoint, _ = checkpoint_dir.latest_valid(resumed.run_dir.checkpoints)
    assert checkpoint is not None
    assert checkpoint.name == "step-00000004"
    resumed.resume(checkpoint)
    resumed.run()
    assert [event.step for event in resumed_sink.events_of(protocol.Eval)] == [4, 6]
    assert [event.step for event in resumed_sink.events_of(protocol.Step)] == [5, 6]


def test_a_checkpoint_evaluated_after_a_resume_records_its_loss(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, text_file(tmp_path), eval_steps=2, save_steps=1, keep_last=1, keep_best=1)
    trainer, _ = build_trainer(tmp_path, config)
    polls = iter([True])

    def stop_in_evaluation() -> None:
        if trainer.state.counters.step == 2 and next(polls, False):
            raise StopRequested

    trainer.context.poll = stop_in_evaluation  # type: ignore[method-assign]
    with pytest.raises(StopRequested):
        trainer.run()
    resumed, _ = build_trainer(tmp_path, config)
    resumed.resume(resumed.run_dir.checkpoints / "step-00000002")
    resumed.set_up()
    resumed._after_step()
    resumed.checkpointer.wait()
    info = checkpoint_dir.read_info(resumed.run_dir.checkpoints / "step-00000002")
    assert info is not None
    assert info.eval_loss == resumed.state.counters.best_loss


def test_a_validation_loss_that_is_not_finite_is_never_the_best(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, tiny_config(tmp_path, text_file(tmp_path), lr_schedule="plateau"))
    trainer.set_up()
    weight = trainer.model.lm_head.weight
    finite_weight = weight.detach().clone()
    weight.data.fill_(math.nan)
    assert trainer.evaluate() is False
    assert trainer.state.counters.best_loss is None
    weight.data.copy_(finite_weight)
    trainer.save("regular")
    trainer.state.counters.step += 1
    assert trainer.evaluate() is True
    not_finite, finite = sink.events_of(protocol.Eval)
    assert (not_finite.loss, not_finite.perplexity, not_finite.best) == (None, None, False)
    assert finite.loss == trainer.state.counters.best_loss
    assert trainer.plateau.state_dict()["since_best"] == 0
    info = checkpoint_dir.read_info(trainer.run_dir.checkpoints / "step-00000000")
    assert info is not None
    assert info.eval_loss is None


def test_a_finished_evaluation_is_not_repeated_on_resume(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, text_file(tmp_path), sample_steps=4)
    trainer, sink = build_trainer(tmp_path, config)
    polls = iter([True])

    def stop_in_sampling() -> None:
        if sink.events_of(protocol.Eval) and next(polls, False):
            raise StopRequested

    trainer.context.poll = stop_in_sampling  # type: ignore[method-assign]
    with pytest.raises(StopRequested):
        trainer.run()
    resumed, resumed_sink = build_trainer(tmp_path, config)
    resumed.resume(resumed.run_dir.checkpoints / "step-00000004")
    resumed.run()
    assert [event.step for event in sink.events_of(protocol.Eval) + resumed_sink.events_of(protocol.Eval)] == [4, 6]


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    trainer, _ = build_trainer(tmp_path, tiny_config(tmp_path, text_file(tmp_path), save_steps=1, log_steps=10))

    def poll() -> None:  # between steps 2 and 3, after the checkpoint of step 2 is written
        if trainer.state.counters.step == 2:
            trainer.checkpointer.wait()
            break_weights(trainer)

    trainer.context.poll = poll  # type: ignore[method-assign]
    with pytest.raises(Exception, match="nan at step 3"):
        trainer.run()
    assert checkpoint_dir.list_checkpoints(trainer.run_dir.checkpoints)[-1].name == "step-00000002"


def break_weights(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.model.lm_head.weight[0, 0] = float("nan")


def test_duration_and_throughput_continue_across_a_resume(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, text_file(tmp_path), log_steps=4, save_steps=6, max_steps=6)
    trainer, _ = build_trainer(tmp_path, config)
    trainer.run()
    assert trainer.state.counters.seconds == pytest.approx(trainer.clock.seconds, rel=1e-6)
    resumed, sink = build_trainer(tmp_path, tiny_config(tmp_path, Path(config.data[0]), log_steps=4, max_steps=8))
    resumed.resume(trainer.run_dir.checkpoints / "step-00000006")
    before = resumed.state.counters.seconds
    resumed.run()
    assert before == trainer.state.counters.seconds
    event = sink.events_of(protocol.Step)[0]
    seconds = (event.time_ms.data + event.time_ms.forward + event.time_ms.backward) / 1000
    assert event.tokens_per_s < (resumed.state.counters.tokens - trainer.state.counters.tokens) / (2 * seconds)


def test_an_emergency_checkpoint_restores_the_rng_of_the_failed_step(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, text_file(tmp_path), dropout=0.2)
    trainer, _ = build_trainer(tmp_path, config)

    def fail(weight: torch.Tensor) -> None:
        if trainer.state.counters.step == 3:
            raise RuntimeError("test failure")

    trainer.model.lm_head.weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="test failure"):
        trainer.run()
    uninterrupted, uninterrupted_sink = build_trainer(tmp_path, config, "uninterrupted")
    uninterrupted.run()
    resumed, resumed_sink = build_trainer(tmp_path, config)
    checkpoint, _ = checkpoint_dir.latest_valid(trainer.run_dir.checkpoints)
    assert checkpoint is not None
    resumed.resume(checkpoint)
    resumed.run()
    assert losses(resumed_sink) == losses(uninterrupted_sink)[3:]


def test_rotation_keeps_the_last_and_the_best_checkpoints(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path, text_file(tmp_path), save_steps=1, keep_last=2, keep_best=1, eval_steps=2, max_steps=6
    )
    trainer, sink = build_trainer(tmp_path, config)
    trainer.run()
    events = sink.events_of(protocol.Checkpoint)
    assert [event.step for event in events] == [1, 2, 3, 4, 5, 6]
    assert all(event.path in event.kept for event in events)
    best = min(sink.events_of(protocol.Eval), key=lambda event: event.loss).step
    names = {path.name for path in checkpoint_dir.list_checkpoints(trainer.run_dir.checkpoints)}
    assert names == {checkpoint_dir.folder_name(step) for step in {5, 6, best}}


@pytest.mark.parametrize(("schedule", "end"), [("cosine", 1e-4), ("linear", 1e-4), ("constant", 1e-3)])
def test_the_learning_rate_warms_up_and_decays_to_its_minimum(schedule: str, end: float) -> None:
    values = {"learning_rate": 1e-3, "warmup_steps": 10, "lr_schedule": schedule, "max_steps": 100}
    config = Schedule(resolve([ConfigLayer("test", values)]), samples_per_epoch=50)
    rates = [config.learning_rate(step, position=step * 8) for step in range(1, 101)]
    assert rates[0] == pytest.approx(1e-4)
    assert rates[9] == pytest.approx(1e-3) == max(rates)
    assert rates[-1] == pytest.approx(end)
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[9:]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "more",
    [
        {"mixed_precision": "no"},
        {"mixed_precision": "bf16"},
        {"mixed_precision": "fp16"},
        {"mixed_precision": "bf16", "compile": "on"},
        {"mixed_precision": "bf16", "attend_across_documents": False},
        {"mixed_precision": "bf16", "gradient_accumulation_steps": 2, "perf_steps": 10},  # with gradient noise
    ],
    ids=lambda more: ", ".join(f"{name} {value}" for name, value in more.items()),
)
def test_a_step_never_synchronizes_with_a_gpu(tmp_path: Path, more: dict[str, Any]) -> None:
    values = {"device": "cuda:0", "eval_steps": 0, "save_steps": 0, "compile": "off", "max_steps": 100, **more}
    trainer, _ = build_trainer(tmp_path, tiny_config(tmp_path, text_file(tmp_path), **values))
    trainer.set_up()
    for _ in range(3):
        trainer.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            trainer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        trainer.train_data.close()
        trainer.validation_data.close()
