"""Training loop: accumulation, evaluation, saving and resume."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.core.trainer import text_file
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.config import Config, ConfigLayer, resolve
from trainer_core.data.loader import Batch
from trainer_core.data.prepare import prepare
from trainer_core.progress import NullReporter, StopRequested
from trainer_core.run_context import RunContext
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.train.device import Precision, choose_precision, configure_arithmetic
from trainer_core.train.ranks import ALONE, Ranks
from trainer_core.train.schedule import Schedule
from trainer_core.train.trainer import Trainer
from trainer_core.train.training_step import TrainingStep
from trainer_core.wire import EventDispatcher

CPU = torch.device("cpu")


def pairs_file(folder: Path) -> Path:
    """Prompts and responses of very different lengths, so that token weighting matters."""
    path = folder / "pairs.jsonl"
    rows = ({"prompt": f"{n} + 1 =", "response": "x" * (1 + n * 7 % 20) + str(n + 1)} for n in range(210))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def config(folder: Path, data: Path, **values: object) -> Config:
    tiny = {
        "data": [str(data)], "cache_dir": str(folder / "cache"), "hidden_dim": 32, "n_layers": 2, "n_heads": 2,
        "max_seq_len": 48, "vocab_size": 320, "batch_size": 12, "warmup_steps": 2, "learning_rate": 3e-3,
        "log_steps": 1, "eval_steps": 4, "eval_batches": 2, "sample_steps": 0, "sample_tokens": 4,
        "save_steps": 0, "max_steps": 6, "device": "cpu",
    }  # fmt: skip
    return resolve([ConfigLayer("here", {**tiny, **values})])


def trainer(
    folder: Path, wanted: Config, name: str = "run", ranks: Ranks = ALONE, precision: Precision | None = None
) -> tuple[Trainer, RecordingSink]:
    kept, device = RecordingSink(), torch.device(wanted.device)
    configure_arithmetic(wanted, device)
    run = RunDir(folder / name)
    run.create()
    precision = precision or choose_precision(wanted.mixed_precision, device, NullReporter())
    kind = TrainingStep if ranks.rank else Trainer
    made = kind(
        wanted, prepare(wanted, NullReporter()), run, RunContext(EventDispatcher(kept)), device, precision, ranks
    )
    return made, kept


@pytest.mark.parametrize("chunked", ["on", "off"])
def test_fp16_passes_the_gradient_scale_to_the_loss(tmp_path: Path, chunked: str) -> None:
    """In every micro-batch, and in the halves that follow when memory runs out."""
    wanted = config(tmp_path, pairs_file(tmp_path), gradient_accumulation_steps=2, chunked_loss=chunked, eval_steps=0)
    made, kept = trainer(tmp_path, wanted, precision=Precision.from_name("fp16", CPU))
    made.set_up()
    loss = made.engine.loss
    expected: list[torch.Tensor] = []
    received: list[torch.Tensor] = []

    def watched(batch: Batch, grad_scale: torch.Tensor) -> torch.Tensor:
        if made.state.counters.step == 2 and batch.input_ids.shape[0] > 6:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        summed = loss(batch, grad_scale)
        expected.append(grad_scale)
        summed.register_hook(received.append)
        return summed

    made.engine.loss = watched  # type: ignore[method-assign,assignment]
    for _ in range(4):
        made.step()
    made.train_data.close(), made.validation_data.close()
    assert [move.action for move in kept.of(protocol.OomRecovery)] == ["halved"]
    assert len(received) == 2 + 2 + 4 + 4
    assert torch.equal(torch.stack(expected), torch.stack(received))
    assert all(weight.isfinite().all() for weight in made.model.parameters())


def losses(kept: RecordingSink) -> list[float]:
    return [event.loss for event in kept.of(protocol.Step)]


@pytest.mark.parametrize("data", [text_file, pairs_file], ids=["text", "pairs of different lengths"])
def test_accumulating_small_batches_equals_one_large_batch(tmp_path: Path, data: object) -> None:
    path = data(tmp_path)  # type: ignore[operator]
    whole, whole_kept = trainer(tmp_path, config(tmp_path, path), "whole")
    split, split_kept = trainer(tmp_path, config(tmp_path, path, batch_size=4, gradient_accumulation_steps=3), "split")
    whole.run(), split.run()
    assert losses(split_kept) == pytest.approx(losses(whole_kept), rel=1e-4)
    for name, weight in whole.model.named_parameters():
        torch.testing.assert_close(split.model.get_parameter(name), weight, rtol=2e-2, atol=2e-4)


def test_the_last_window_of_an_epoch_is_short_and_every_sample_is_used_once(tmp_path: Path) -> None:
    wanted = config(
        tmp_path, pairs_file(tmp_path), batch_size=8, gradient_accumulation_steps=3, max_steps=0, max_epochs=2
    )
    made, kept = trainer(tmp_path, wanted)
    samples = made.train_data.samples
    assert -(-made.train_data.samples // made.config.batch_size) % 3 != 0, "the data must make a short window"
    done = made.run()
    steps = kept.of(protocol.Step)
    assert done.steps == 2 * made.steps_per_epoch == len(steps)
    assert steps[made.steps_per_epoch - 1].samples == samples
    assert steps[-1].samples == 2 * samples
    assert steps[-1].epoch == 2


def test_training_lowers_both_losses(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, config(tmp_path, text_file(tmp_path), max_steps=60, log_steps=10))
    made.run()
    assert losses(kept)[-1] < 0.6 * losses(kept)[0]
    evals = kept.of(protocol.Eval)
    assert evals[-1].loss < evals[0].loss
    assert evals[-1].best


def test_step_sections_add_up_to_the_wall_time(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, config(tmp_path, text_file(tmp_path), max_steps=20, log_steps=5))
    made.run()
    totals = []
    for event in kept.of(protocol.Step):
        parts = event.time_ms
        totals.append(parts.data + parts.transfer + parts.forward + parts.backward + parts.optimizer + parts.other)
        assert parts.forward > 0
        assert parts.other < 0.2 * totals[-1]
    assert sum(totals) * 5 / 1000 == pytest.approx(made.state.counters.seconds, rel=0.02)


def test_evaluation_and_samples_do_not_change_the_weights(tmp_path: Path) -> None:
    data = text_file(tmp_path)
    plain, _ = trainer(tmp_path, config(tmp_path, data, eval_steps=0, dropout=0.2), "plain")
    watched, kept = trainer(tmp_path, config(tmp_path, data, eval_steps=1, sample_steps=1, dropout=0.2), "watched")
    configure_arithmetic(plain.config, CPU)
    plain.run()
    configure_arithmetic(plain.config, CPU)
    watched.run()
    assert len(kept.of(protocol.Eval)) == 6
    assert len(kept.of(protocol.Sample)) >= 6
    for name, weight in plain.model.named_parameters():
        assert torch.equal(watched.model.get_parameter(name), weight), name


def test_an_evaluation_interrupted_by_a_stop_is_repeated_on_resume(tmp_path: Path) -> None:
    wanted = config(tmp_path, text_file(tmp_path))
    made, kept = trainer(tmp_path, wanted)
    polls = iter([True])

    def stop_in_evaluation() -> None:
        if made.state.counters.step == 4 and next(polls, False):
            raise StopRequested

    made.context.poll = stop_in_evaluation  # type: ignore[method-assign]
    with pytest.raises(StopRequested):
        made.run()
    assert [event.step for event in kept.of(protocol.Eval)] == []
    again, kept_again = trainer(tmp_path, wanted)
    found, _ = checkpoint_dir.latest_valid(again.run_dir.checkpoints)
    assert found is not None
    assert found.name == "step-00000004"
    again.resume(found)
    again.run()
    assert [event.step for event in kept_again.of(protocol.Eval)] == [4, 6]
    assert [event.step for event in kept_again.of(protocol.Step)] == [5, 6]


def test_a_checkpoint_evaluated_after_a_resume_records_its_loss(tmp_path: Path) -> None:
    wanted = config(tmp_path, text_file(tmp_path), eval_steps=2, save_steps=1, keep_last=1, keep_best=1)
    made, _ = trainer(tmp_path, wanted)
    polls = iter([True])

    def stop_in_evaluation() -> None:
        if made.state.counters.step == 2 and next(polls, False):
            raise StopRequested

    made.context.poll = stop_in_evaluation  # type: ignore[method-assign]
    with pytest.raises(StopRequested):
        made.run()
    again, _ = trainer(tmp_path, wanted)
    again.resume(again.run_dir.checkpoints / "step-00000002")
    again.set_up()
    again._after_step()
    again.checkpointer.wait()
    info = checkpoint_dir.read_info(again.run_dir.checkpoints / "step-00000002")
    assert info is not None
    assert info.eval_loss == again.state.counters.best_loss


def test_a_validation_loss_that_is_not_finite_is_never_the_best(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, config(tmp_path, text_file(tmp_path), lr_schedule="plateau"))
    made.set_up()
    weight = made.model.lm_head.weight
    sound = weight.detach().clone()
    weight.data.fill_(math.nan)
    assert made.evaluate() is False
    assert made.state.counters.best_loss is None
    weight.data.copy_(sound)
    made.save("regular")
    made.state.counters.step += 1
    assert made.evaluate() is True
    broken, whole = kept.of(protocol.Eval)
    assert (broken.loss, broken.perplexity, broken.best) == (None, None, False)
    assert whole.loss == made.state.counters.best_loss == made.plateau.state_dict()["best"]
    info = checkpoint_dir.read_info(made.run_dir.checkpoints / "step-00000000")
    assert info is not None
    assert info.eval_loss is None


def test_a_finished_evaluation_is_not_repeated_on_resume(tmp_path: Path) -> None:
    wanted = config(tmp_path, text_file(tmp_path), sample_steps=4)
    made, kept = trainer(tmp_path, wanted)
    polls = iter([True])

    def stop_in_sampling() -> None:
        if kept.of(protocol.Eval) and next(polls, False):
            raise StopRequested

    made.context.poll = stop_in_sampling  # type: ignore[method-assign]
    with pytest.raises(StopRequested):
        made.run()
    again, kept_again = trainer(tmp_path, wanted)
    again.resume(again.run_dir.checkpoints / "step-00000004")
    again.run()
    assert [event.step for event in kept.of(protocol.Eval) + kept_again.of(protocol.Eval)] == [4, 6]


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    made, _ = trainer(tmp_path, config(tmp_path, text_file(tmp_path), save_steps=1, log_steps=10))

    def poll() -> None:  # between steps 2 and 3, when the checkpoint of step 2 is whole
        if made.state.counters.step == 2:
            made.checkpointer.wait()
            _break(made)

    made.context.poll = poll  # type: ignore[method-assign]
    with pytest.raises(Exception, match="nan at step 3"):
        made.run()
    assert checkpoint_dir.list_checkpoints(made.run_dir.checkpoints)[-1].name == "step-00000002"


def _break(made: Trainer) -> None:
    with torch.no_grad():
        made.model.lm_head.weight[0, 0] = float("nan")


def test_duration_and_throughput_continue_across_a_resume(tmp_path: Path) -> None:
    wanted = config(tmp_path, text_file(tmp_path), log_steps=4, save_steps=6, max_steps=6)
    made, _ = trainer(tmp_path, wanted)
    made.run()
    assert made.state.counters.seconds == pytest.approx(made.clock.seconds, rel=1e-6)
    again, kept = trainer(tmp_path, config(tmp_path, Path(wanted.data[0]), log_steps=4, max_steps=8))
    again.resume(made.run_dir.checkpoints / "step-00000006")
    before = again.state.counters.seconds
    again.run()
    assert before == made.state.counters.seconds
    event = kept.of(protocol.Step)[0]
    took = (event.time_ms.data + event.time_ms.forward + event.time_ms.backward) / 1000
    assert event.tokens_per_s < (again.state.counters.tokens - made.state.counters.tokens) / (2 * took)


def test_an_emergency_checkpoint_restores_the_rng_of_the_failed_step(tmp_path: Path) -> None:
    wanted = config(tmp_path, text_file(tmp_path), dropout=0.2)
    made, _ = trainer(tmp_path, wanted)

    def fail(weight: torch.Tensor) -> None:
        if made.state.counters.step == 3:
            raise RuntimeError("a cosmic ray")

    made.model.lm_head.weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="cosmic"):
        made.run()
    whole, kept = trainer(tmp_path, wanted, "whole")
    whole.run()
    again, kept_again = trainer(tmp_path, wanted)
    found, _ = checkpoint_dir.latest_valid(made.run_dir.checkpoints)
    assert found is not None
    again.resume(found)
    again.run()
    assert losses(kept_again) == losses(kept)[3:]


def test_rotation_keeps_the_last_and_the_best_checkpoints(tmp_path: Path) -> None:
    wanted = config(tmp_path, text_file(tmp_path), save_steps=1, keep_last=2, keep_best=1, eval_steps=2, max_steps=6)
    made, kept = trainer(tmp_path, wanted)
    made.run()
    events = kept.of(protocol.Checkpoint)
    assert [event.step for event in events] == [1, 2, 3, 4, 5, 6]
    assert all(event.path in event.kept for event in events)
    best = min(kept.of(protocol.Eval), key=lambda event: event.loss).step
    names = {path.name for path in checkpoint_dir.list_checkpoints(made.run_dir.checkpoints)}
    assert names == {checkpoint_dir.folder_name(step) for step in {5, 6, best}}


@pytest.mark.parametrize(("schedule", "end"), [("cosine", 1e-4), ("linear", 1e-4), ("constant", 1e-3)])
def test_the_learning_rate_warms_up_and_decays_to_its_minimum(schedule: str, end: float) -> None:
    values = {"learning_rate": 1e-3, "warmup_steps": 10, "lr_schedule": schedule, "max_steps": 100}
    wanted = Schedule(resolve([ConfigLayer("here", values)]), samples_per_epoch=50)
    rates = [wanted.learning_rate(step, position=step * 8) for step in range(1, 101)]
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
        {"mixed_precision": "bf16", "gradient_accumulation_steps": 2, "perf_steps": 10},  # the gradient noise, too
    ],
    ids=lambda more: ", ".join(f"{name} {value}" for name, value in more.items()),
)
def test_a_step_never_synchronizes_with_a_gpu(tmp_path: Path, more: dict[str, Any]) -> None:
    values = {"device": "cuda:0", "eval_steps": 0, "save_steps": 0, "compile": "off", "max_steps": 100, **more}
    made, _ = trainer(tmp_path, config(tmp_path, text_file(tmp_path), **values))
    made.set_up()
    for _ in range(3):
        made.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            made.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
        made.train_data.close()
        made.validation_data.close()
