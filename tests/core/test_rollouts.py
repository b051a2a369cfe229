"""Runs that learn from rewards: exact resume, recovery from out of memory, events, best checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.core.trainer_process import run
from tests.core.training import (
    OUT_OF_MEMORY,
    build_trainer,
    copy_weights,
    limit_batch_size,
    losses,
    pairs_file,
    record_samples,
    recovery_actions,
    tiny_config,
)
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.generation import decoding
from trainer_core.messages import TraindeckError
from trainer_core.rewards.functions import FUNCTIONS, Answer
from trainer_core.rewards.rewards import load_rewards
from trainer_core.run_plan import build_config
from trainer_core.train.trainer import Trainer


def rewarded_config(folder: Path, **values: object) -> Config:
    """A random model that learns to give short answers with many digits."""
    defaults = {
        "objective": "grpo", "rewards": ["length:-4", "0.5*regex:[0-9]"], "rollout_max_new_tokens": 8, "group_size": 4,
        "batch_size": 4, "max_steps": 6, "eval_steps": 0, "cpu_threads": 1, "perf_steps": 0, "eval_examples": 8,
    }  # fmt: skip
    return tiny_config(folder, pairs_file(folder), **{**defaults, **values})


def train(folder: Path, name: str = "run", **values: object) -> tuple[Trainer, RecordingSink]:
    trainer, sink = build_trainer(folder, rewarded_config(folder, **values), name)
    trainer.run()
    return trainer, sink


def assert_equal(weights: list[torch.Tensor], others: list[torch.Tensor]) -> None:
    for one, other in zip(weights, others, strict=True):
        assert torch.equal(one, other)


def rewards_of(sink: RecordingSink) -> list[protocol.Rollouts]:
    return sink.events_of(protocol.Rollouts)


@pytest.mark.parametrize("steps_per_generation", [1, 3])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, steps_per_generation: int) -> None:
    options: dict[str, Any] = {"steps_per_generation": steps_per_generation, "save_steps": 2, "keep_last": 9}
    whole, whole_sink = train(tmp_path, "whole", **options)
    resumed, sink = build_trainer(tmp_path, rewarded_config(tmp_path, **options), "resumed")
    resumed.resume(whole.run_dir.checkpoints / "step-00000004")  # within a generation of three steps
    samples = record_samples(resumed)
    resumed.run()
    assert_equal(copy_weights(resumed), copy_weights(whole))
    assert losses(sink) == losses(whole_sink)[4:]
    assert [len(step) for step in samples] == [4, 4]
    assert [event.step for event in rewards_of(whole_sink)] == list(range(1, 7, steps_per_generation))
    later = [event for event in rewards_of(whole_sink) if event.step > 4]
    assert [event.samples for event in rewards_of(sink)] == [event.samples for event in later]


def test_a_generation_ends_if_the_prompts_of_a_resumed_run_are_others(tmp_path: Path) -> None:
    first, _ = train(tmp_path, "first", steps_per_generation=3, max_steps=4)
    resumed, sink = build_trainer(tmp_path, rewarded_config(tmp_path, steps_per_generation=3, batch_size=5), "resumed")
    resumed.resume(first.run_dir.checkpoints / "step-00000004")
    resumed.run()
    assert [event.step for event in rewards_of(sink)] == [5]
    assert rewards_of(sink)[0].answers == 3 * 5 * 4


@pytest.mark.parametrize("group_size", [2, 6])
def test_a_generation_ends_if_the_groups_of_a_resumed_run_have_another_size(tmp_path: Path, group_size: int) -> None:
    first, _ = train(tmp_path, "first", steps_per_generation=3, max_steps=4)
    config = rewarded_config(tmp_path, steps_per_generation=3, group_size=group_size)
    resumed, sink = build_trainer(tmp_path, config, "resumed")
    resumed.resume(first.run_dir.checkpoints / "step-00000004")
    resumed.run()
    assert [(event.step, event.answers) for event in rewards_of(sink)] == [(5, 3 * 4 * group_size)]


def test_a_resume_with_other_rewards_or_answers_is_reported_as_not_exact(tmp_path: Path) -> None:
    first, _ = train(tmp_path, "first", max_steps=2)
    changed = rewarded_config(tmp_path, max_steps=3, rewards=["length:-4"], rollout_temperature=0.5)
    resumed, sink = build_trainer(tmp_path, changed, "resumed")
    resumed.resume(first.run_dir.checkpoints / "step-00000002")
    resumed.run()
    warnings = [event.params for event in sink.events_of(protocol.Warn) if event.code == "resume.not_exact"]
    assert {warning["what"] for warning in warnings} == {"rewards", "rollout_temperature"}


def test_other_rewards_begin_with_a_new_generation_and_without_a_best_evaluation(tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps_per_generation": 3, "eval_steps": 1, "early_stop_patience": 1}
    first, _ = train(tmp_path, "first", **options, max_steps=1, rewards=["10*length:1-99"])
    changed = rewarded_config(tmp_path, **options, max_steps=2, rewards=["exact"])
    resumed, sink = build_trainer(tmp_path, changed, "resumed")
    resumed.resume(first.run_dir.checkpoints / "step-00000001")
    resumed.run()
    assert [event.step for event in rewards_of(sink)] == [2]
    assert [event.best for event in sink.events_of(protocol.Eval)] == [True]


def test_a_pattern_that_takes_too_long_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long(answer: Answer) -> float:
        raise TimeoutError

    monkeypatch.setitem(FUNCTIONS, "exact", lambda value: too_long)
    _, sink = train(tmp_path, max_steps=2, rewards=["exact", "length:1-4"])
    found = [event.params for event in sink.events_of(protocol.Warn) if event.code == "train.slow_reward"]
    assert found == [{"reward": "exact", "seconds": 1}]


def test_later_steps_of_a_generation_are_clipped(tmp_path: Path) -> None:
    _, sink = train(tmp_path, steps_per_generation=3, learning_rate=0.05, clip_low=0.01, clip_high=0.01)
    first, second, third, *_ = [event.clip_ratio for event in sink.events_of(protocol.Step)]
    assert first == 0
    assert min(second, third) > 0


def test_leaving_out_answers_without_signal_changes_nothing(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rewards": ["regex:[0-9]"], "policy_loss": "grpo", "max_steps": 1}
    trainer, sink = train(tmp_path, "left out", **options)
    whole, whole_sink = build_trainer(tmp_path, rewarded_config(tmp_path, **options), "whole")
    whole.rollouts.skips_equal = False  # type: ignore[union-attr]
    whole.run()
    assert 0 < rewards_of(sink)[0].no_signal_ratio < 1
    assert trainer.state.counters.tokens < whole.state.counters.tokens
    (event,), (expected,) = (one.events_of(protocol.Step) for one in (sink, whole_sink))
    assert (event.loss, event.grad_norm) == pytest.approx((expected.loss, expected.grad_norm), rel=1e-3)


def test_the_reward_rises_and_the_best_checkpoint_has_the_highest(tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 8, "group_size": 8, "max_steps": 30, "learning_rate": 0.01}
    trainer, sink = train(tmp_path, **options, rewards=["regex:[0-9]"], eval_steps=10, eval_on_start=True)
    events = sink.events_of(protocol.Eval)
    best = max(events, key=lambda event: (event.reward, -event.loss))
    assert best.best
    assert best.reward > events[0].reward + 0.2
    assert trainer.state.counters.best_reward == max(event.reward for event in events)
    assert rewards_of(sink)[-1].reward > rewards_of(sink)[0].reward + 0.2


def test_the_event_describes_the_answers(tmp_path: Path) -> None:
    _, sink = train(tmp_path, max_steps=2, log_steps=2)
    [event] = rewards_of(sink)
    assert event.step == 2
    assert event.answers == 16
    assert list(event.scores) == ["length:-4", "regex:[0-9]"]
    assert event.reward == pytest.approx(event.scores["length:-4"] + 0.5 * event.scores["regex:[0-9]"])
    assert 0 < event.answer_tokens <= 9
    assert len(event.samples) == 8
    assert len({sample.prompt for sample in event.samples}) == 2
    rewards = load_rewards(list(event.scores))
    for sample in event.samples:
        assert sample.reference.startswith("x")
        short, digits = rewards.scores(Answer(sample.text, sample.reference, "end"))
        assert sample.reward == pytest.approx(short + 0.5 * digits)
    [step] = sink.events_of(protocol.Step)
    assert step.entropy is not None
    assert 4 < step.entropy < 7  # a random model of 320 tokens
    assert step.time_ms.generation > 0


def test_answers_do_not_depend_on_how_many_are_generated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = train(tmp_path, "whole", max_steps=2)
    add = decoding.RaggedBatch.add

    def limited(batch: decoding.RaggedBatch, rows: Any) -> None:
        if len(rows) > 3:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        add(batch, rows)

    monkeypatch.setattr(decoding.RaggedBatch, "add", limited)
    _, sink = train(tmp_path, "parts", max_steps=2)
    assert [event.samples for event in rewards_of(sink)] == [event.samples for event in rewards_of(expected)]
    assert losses(sink) == pytest.approx(losses(expected), abs=1e-6)


def test_a_step_that_runs_out_of_memory_is_repeated_in_halves(tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps_per_generation": 2, "max_steps": 4}
    _, expected = train(tmp_path, "whole", **options)
    trainer, sink = build_trainer(tmp_path, rewarded_config(tmp_path, **options), "halved")
    limit_batch_size(trainer, 2)
    trainer.run()
    assert [action[0] for action in recovery_actions(sink)] == ["halved"]
    assert losses(sink) == pytest.approx(losses(expected), abs=1e-5)


def test_kl_is_measured_against_the_model_without_its_adapter(tmp_path: Path) -> None:
    options: dict[str, Any] = {"method": "lora", "kl_beta": 0.1, "learning_rate": 0.05, "max_steps": 4}
    _, sink = train(tmp_path, **options)
    first, *_, last = [event.kl for event in sink.events_of(protocol.Step)]
    assert first == pytest.approx(0, abs=1e-6)
    assert last > 1e-3


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"rewards": []}, "config.no_rewards"),
        ({"rewards": ["correct"]}, "config.unknown_reward"),
        ({"packing": True}, "config.rewards_unsupported"),
        ({"parallel": "fsdp"}, "config.parallel_unsupported"),
        ({"kl_beta": 0.1}, "config.rewards_unsupported"),
        ({"task": "pretrain"}, "config.rewards_unsupported"),
    ],
)
def test_settings_that_rewards_cannot_use_are_refused(settings: dict[str, Any], code: str) -> None:
    flags = {"preset": None, "config_file": None, "objective": "grpo", "rewards": ["exact"], **settings}
    with pytest.raises(TraindeckError) as raised:
        build_config({name: value for name, value in flags.items() if value != []})
    assert raised.value.code == code


def test_a_check_measures_steps_with_generated_answers(tmp_path: Path) -> None:
    flags = ["--data", str(pairs_file(tmp_path)), "--objective", "grpo", "--rewards", "exact", "--group-size", "2"]
    flags += ["--rollout-max-new-tokens", "16", "--hidden-dim", "32", "--n-layers", "2", "--max-seq-len", "48"]
    flags += ["--vocab-size", "320", "--batch-size", "4", "--max-steps", "4", "--device", "cpu"]
    result = run(tmp_path, "check", *flags)
    assert result.code == 0, result.stderr
    assert result.events_of(protocol.CheckReport)[0].seconds  # the loss needs the advantages of generated answers
