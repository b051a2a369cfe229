"""Runs that learn from preferences: exact resume, OOM recovery, the best checkpoint, the reference of full tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tests.core.trainer_process import TINY, run
from tests.core.training import (
    build_trainer,
    copy_weights,
    limit_batch_size,
    losses,
    preference_file,
    recovery_actions,
    tiny_config,
)
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.messages import TraindeckError
from trainer_core.models import adapters
from trainer_core.runs import checkpoint_dir
from trainer_core.train.preferences import reference_logps
from trainer_core.train.trainer import Trainer

PAIRS_AND_LORA = [
    ("dpo", "lora"),
    ("ipo", "full"),
    ("orpo", "full"),
    ("simpo", "lora"),
    ("kto", "lora"),
    ("kto", "full"),
]


def preference_config(folder: Path, objective: str, method: str, **values: object) -> Config:
    common = {"objective": objective, "method": method, "lora_rank": 4, "batch_size": 4, "cpu_threads": 1}
    data = preference_file(folder, labelled=objective == "kto")
    accumulation = {"gradient_accumulation_steps": 2, "eval_steps": 3, "max_steps": 6}
    return tiny_config(folder, data, **{**common, **accumulation, **values})


def newest(trainer: Trainer) -> Path:
    return checkpoint_dir.list_checkpoints(trainer.run_dir.checkpoints)[-1]


def resumed_from(folder: Path, run: Trainer, config: Config, step: int) -> tuple[Trainer, Any]:
    """A run in the same folder that continues from a step of `run`."""
    trainer, events = build_trainer(folder, config, run.run_dir.path.name)
    trainer.resume(run.run_dir.checkpoints / f"step-{step:08d}")
    return trainer, events


@pytest.mark.parametrize(("objective", "method"), PAIRS_AND_LORA)
def test_a_resumed_run_is_exact(tmp_path: Path, objective: str, method: str) -> None:
    packed = {"packing": objective in ("dpo", "orpo")}
    config = preference_config(tmp_path, objective, method, save_steps=3, keep_last=9, max_steps=9, **packed)
    whole, events = build_trainer(tmp_path, config, "run")
    whole.run()
    names = (adapters.ADAPTER_FILE if method == "lora" else "model.safetensors", "optimizer.safetensors", "state.json")
    contents = [(newest(whole) / name).read_bytes() for name in names[:2]]
    rewards = [event.reward_margin for event in events.events_of(protocol.Step)]
    resumed, later = resumed_from(tmp_path, whole, config, 3)
    resumed.run()
    assert losses(later) == losses(events)[3:]
    assert [event.reward_margin for event in later.events_of(protocol.Step)] == rewards[3:]
    assert [(newest(resumed) / name).read_bytes() for name in names[:2]] == contents
    assert losses(events)[-1] < losses(events)[0]


@pytest.mark.parametrize("objective", ["dpo", "orpo", "simpo"])
def test_oom_recovery_trains_the_same_weights(tmp_path: Path, objective: str) -> None:
    config = preference_config(tmp_path, objective, "lora", max_steps=4, eval_steps=0)
    expected, events = build_trainer(tmp_path, config, "whole")
    expected.run()
    trainer, sink = build_trainer(tmp_path, config, "halved")
    limit_batch_size(trainer, 1)
    trainer.run()
    assert [action for action, *_ in recovery_actions(sink)] == ["halved", "halved"]
    assert losses(sink) == pytest.approx(losses(events), abs=1e-5)
    for one, other in zip(copy_weights(trainer), copy_weights(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_the_model_learns_to_prefer_the_good_answers(tmp_path: Path) -> None:
    config = preference_config(tmp_path, "dpo", "full", max_steps=30, learning_rate=3e-3, eval_on_start=True)
    trainer, events = build_trainer(tmp_path, config)
    trainer.run()
    evals = events.events_of(protocol.Eval)
    assert evals[0].reward_accuracy == 0.0  # the model is the reference
    assert evals[0].loss == pytest.approx(0.6931, abs=1e-3)
    assert evals[-1].reward_accuracy == 1.0
    assert evals[-1].perplexity is None


def test_the_best_checkpoint_has_the_highest_accuracy_then_the_lowest_loss(tmp_path: Path) -> None:
    trainer, _ = build_trainer(tmp_path, preference_config(tmp_path, "dpo", "lora"))
    found = []
    for accuracy, loss in [(0.5, 0.6), (0.5, 0.7), (0.75, 0.9), (0.5, 0.1), (0.75, 0.8)]:
        found.append(trainer._is_best(loss, accuracy))
        if found[-1]:
            trainer.state.counters.best_loss, trainer.state.counters.best_reward = loss, accuracy
    assert found == [True, False, True, False, True]


def test_full_tuning_keeps_the_reference_of_the_first_start(tmp_path: Path) -> None:
    config = preference_config(tmp_path, "dpo", "full", save_steps=3, keep_last=9)
    trainer, _ = build_trainer(tmp_path, config, "run")
    trainer.run()
    path = trainer.run_dir.path / "reference-train.npy"
    assert np.load(path).shape == (trainer.train_data.samples, 2)
    assert (np.load(path) < 0).all()
    path.unlink()
    again, _ = resumed_from(tmp_path, trainer, config, 3)
    with pytest.raises(TraindeckError) as error:
        again.set_up()
    assert error.value.code == "resume.no_reference"


def test_a_new_run_from_an_older_checkpoint_has_the_reference_of_the_first(tmp_path: Path) -> None:
    data = ("--data", str(preference_file(tmp_path, labelled=False)))
    options = ("--objective", "dpo", "--save-steps", "2", "--keep-last", "9", "--max-steps", "4", *data)
    first = run(tmp_path, "train", *TINY, *options, "--run-dir", "first")
    assert first.code == 0, first.stderr
    older = tmp_path / "first" / "checkpoints" / "step-00000002"
    branch = run(tmp_path, "train", "--resume", str(older), "--run-dir", "branch")
    assert branch.code == 0, branch.stderr
    losses_of = [[event.loss for event in one.events_of(protocol.Step) if event.step > 2] for one in (first, branch)]
    assert losses_of[0] == losses_of[1]
    (file,) = (tmp_path / "branch").glob("reference-train.npy")
    assert file.read_bytes() == (tmp_path / "first" / file.name).read_bytes()


def test_the_reference_of_answers_to_other_prompts_is_kept_with_packing(tmp_path: Path) -> None:
    config = preference_config(tmp_path, "kto", "full", packing=True, max_seq_len=96)
    trainer, _ = build_trainer(tmp_path, config, "run")
    trainer.set_up()
    batches = list(trainer.train_data.iterate_epoch(0))
    assert len({batch.preference.shape[1] for batch in batches if batch.preference is not None}) > 1
    for batch in batches:
        assert batch.mismatched is not None
        for part in (batch, batch.mismatched):
            assert part.reference is not None
            torch.testing.assert_close(part.reference, reference_logps(trainer.model, part), atol=1e-4, rtol=1e-4)
    trainer.close()


def test_the_reference_of_another_objective_is_refused(tmp_path: Path) -> None:
    config = preference_config(tmp_path, "dpo", "full", save_steps=3, max_steps=3)
    trainer, _ = build_trainer(tmp_path, config, "run")
    trainer.run()
    again, _ = resumed_from(tmp_path, trainer, msgspec.structs.replace(config, objective="kto"), 3)
    with pytest.raises(TraindeckError) as error:
        again.set_up()
    assert error.value.code == "resume.no_reference"


@pytest.mark.parametrize("schedule", ["constant", "plateau"])
def test_evaluations_that_are_the_best_end_no_run_and_lower_no_rate(tmp_path: Path, schedule: Any) -> None:
    config = preference_config(
        tmp_path,
        "dpo",
        "lora",
        early_stop_patience=1,
        plateau_patience=1,
        lr_schedule=schedule,
        eval_steps=1,
        max_steps=4,
    )
    trainer, _ = build_trainer(tmp_path, config)
    trainer._is_best = lambda loss, reward: True  # type: ignore[method-assign]
    trainer.run()
    assert trainer.state.counters.step == 4
    assert trainer.plateau.scale == 1


def test_a_damaged_reference_is_refused(tmp_path: Path) -> None:
    config = preference_config(tmp_path, "dpo", "full", save_steps=3, keep_last=9, max_steps=3)
    trainer, _ = build_trainer(tmp_path, config, "run")
    trainer.run()
    path = trainer.run_dir.path / "reference-train.npy"
    path.write_bytes(path.read_bytes()[:-5])
    again, _ = resumed_from(tmp_path, trainer, config, 3)
    with pytest.raises(TraindeckError) as error:
        again.set_up()
    assert error.value.code == "resume.no_reference"
