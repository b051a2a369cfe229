"""A sweep: values as they are typed or spread, and the runs that come of them."""

from __future__ import annotations

import pytest

from app.core import sweep
from app.core.sweep import SweepParameter
from trainer_core.config import knobs
from trainer_core.messages import TraindeckError

RATE, BATCH, HEADS = (knobs()[name] for name in ("learning_rate", "batch_size", "n_heads"))


@pytest.mark.parametrize("text", ["1e-4, 3e-4,0.001", "1e-4 3e-4\t1e-3", "1e-4；3e-4，1e−3", "1e-4,1e-4,3e-4,,1e-3, "])
def test_values_are_typed_with_commas_or_spaces_also_of_a_chinese_keyboard(text: str) -> None:
    assert sweep.parse_values(RATE, text) == [1e-4, 3e-4, 1e-3]


@pytest.mark.parametrize(
    ("knob", "text"), [(RATE, "1e-4, x"), (RATE, "0"), (BATCH, "1.5"), (BATCH, "0"), (RATE, "inf")]
)
def test_a_value_that_the_knob_does_not_take_is_refused(knob: object, text: str) -> None:
    with pytest.raises(TraindeckError) as refused:
        sweep.parse_values(knob, text)  # type: ignore[arg-type]
    assert refused.value.code == "config.bad_value"


def test_a_range_is_spread_in_even_steps_or_even_factors_with_both_ends() -> None:
    assert sweep.spaced_values(RATE, "1e-4", "1e-2", 3, "log") == [1e-4, 1e-3, 1e-2]
    assert sweep.spaced_values(RATE, "1e-4", "1e-3", 4, "linear") == [1e-4, 4e-4, 7e-4, 1e-3]
    assert sweep.spaced_values(BATCH, "4", "32", 4, "log") == [4, 8, 16, 32]
    assert sweep.spaced_values(BATCH, "1", "3", 5, "linear") == [1, 2, 3]  # whole numbers, each once
    assert sweep.spaced_values(BATCH, "8", "8", 3, "log") == [8]
    assert sweep.spaced_values(RATE, "1e-2", "1e-4", 3, "log") == [1e-2, 1e-3, 1e-4]
    assert sweep.spaced_values(BATCH, "4", "32", 1, "log") == [4]


def test_even_factors_from_zero_there_are_none() -> None:
    decay = knobs()["weight_decay"]
    assert sweep.spaced_values(decay, "0", "0.1", 3, "log") == []
    assert sweep.spaced_values(decay, "0", "0.1", 3, "linear") == [0.0, 0.05, 0.1]


def test_every_pair_of_values_is_a_run_with_a_name_that_tells_them() -> None:
    axes = [SweepParameter("learning_rate", (1e-4, 1e-3)), SweepParameter("optimizer", ("adamw", "muon"))]
    planned = sweep.plan_runs("快 start", {}, {"max_steps": 100}, axes, set())
    assert [run.name for run in planned] == [
        "快 start-lr1e-4-adamw",
        "快 start-lr1e-4-muon",
        "快 start-lr1e-3-adamw",
        "快 start-lr1e-3-muon",
    ]
    assert planned[3].changes == {"max_steps": 100, "learning_rate": 1e-3, "optimizer": "muon"}
    assert all(run.error is None and "seed" not in run.changes for run in planned)


def test_names_that_exist_already_get_a_number() -> None:
    planned = sweep.plan_runs("a", {}, {}, [SweepParameter("batch_size", (8, 16))], {"a-bs8"})
    assert [run.name for run in planned] == ["a-bs8-2", "a-bs16"]


def test_a_number_of_sequences_that_is_swept_is_not_picked_automatically() -> None:
    planned = sweep.plan_runs("a", {"auto_batch": True}, {}, [SweepParameter("batch_size", (8,))], set())
    assert planned[0].changes == {"batch_size": 8, "auto_batch": False}


def test_a_combination_that_cannot_be_is_told_with_its_reason() -> None:
    planned = sweep.plan_runs("a", {"hidden_dim": 64}, {}, [SweepParameter("n_heads", (4, 5))], set())
    assert [run.error.code if run.error else "" for run in planned] == ["", "config.heads"]


def test_values_are_short_in_names() -> None:
    told = {
        "learning_rate": (3e-4, "lr3e-4"),
        "dropout": (0.1, "dropout-0.1"),
        "packing": (True, "packing-on"),
        "batch_size": (16, "bs16"),
        "lr_schedule": ("cosine", "cosine"),
        "rope_theta": (10_000.0, "rope-theta-10000"),
        "adam_epsilon": (1e-8, "adam-epsilon-1e-8"),
    }
    for name, (value, text) in told.items():
        assert sweep.name_suffix(name, value) == text


def test_numbers_choices_and_switches_can_be_swept_texts_cannot() -> None:
    names = sweep.sweepable_keys()
    assert {"learning_rate", "optimizer", "packing", "seed"} <= set(names)
    assert not {"data", "device", "tokenizer", "sample_prompts", "preset"} & set(names)
