"""Sweeps: parsed and evenly spaced values, and the planned runs."""

from __future__ import annotations

from app.core import sweep
from trainer_core.config import knobs

RATE, BATCH = knobs()["learning_rate"], knobs()["batch_size"]


def test_values_are_separated_by_ascii_or_chinese_punctuation_or_spaces() -> None:
    for text in ("1e-4, 3e-4,0.001", "1e-4 3e-4\t1e-3", "1e-4；3e-4，1e−3", "1e-4,1e-4,3e-4,,1e-3, "):
        assert sweep.parse_values(RATE, text) == ([1e-4, 3e-4, 1e-3], [])


def test_invalid_values_are_returned_as_typed() -> None:
    assert sweep.parse_values(RATE, "1e-4, x, 0, inf, x") == ([1e-4], ["x", "0", "inf"])
    assert sweep.parse_values(BATCH, "1.5 0") == ([], ["1.5", "0"])


def test_values_around_a_number_or_all_choices_are_suggested() -> None:
    assert sweep.suggest_values(RATE, 3e-4) == [1.5e-4, 3e-4, 6e-4]
    assert sweep.suggest_values(RATE, 10.0) == [5.0, 10.0]  # 20 is not allowed
    assert sweep.suggest_values(BATCH, 1) == [1, 2]
    assert sweep.suggest_values(knobs()["optimizer"], "adamw") == ["adamw", "adamw_8bit", "muon"]
    assert sweep.suggest_values(knobs()["packing"], False) == [True, False]


def test_every_combination_of_values_is_a_run_named_after_them() -> None:
    parameters = {"learning_rate": (1e-4, 1e-3), "optimizer": ("adamw", "muon")}
    planned = sweep.plan_runs("快 start", {}, {"max_steps": 100}, parameters, set())
    assert [run.name for run in planned] == [
        "快 start-lr1e-4-adamw",
        "快 start-lr1e-4-muon",
        "快 start-lr1e-3-adamw",
        "快 start-lr1e-3-muon",
    ]
    assert planned[3].changes == {"max_steps": 100, "learning_rate": 1e-3, "optimizer": "muon"}
    assert all(run.error is None and "seed" not in run.changes for run in planned)


def test_existing_names_get_a_number() -> None:
    planned = sweep.plan_runs("a", {}, {}, {"batch_size": (8, 16)}, {"a-bs8"})
    assert [run.name for run in planned] == ["a-bs8-2", "a-bs16"]


def test_a_sweep_over_batch_size_disables_the_automatic_batch_size() -> None:
    planned = sweep.plan_runs("a", {"auto_batch": True}, {}, {"batch_size": (8,)}, set())
    assert planned[0].changes == {"batch_size": 8, "auto_batch": False}


def test_an_invalid_combination_has_an_error() -> None:
    planned = sweep.plan_runs("a", {"hidden_dim": 64}, {}, {"n_heads": (4, 5)}, set())
    assert [run.error.code if run.error else "" for run in planned] == ["", "config.heads"]


def test_values_are_abbreviated_in_names() -> None:
    suffixes = {
        "learning_rate": (3e-4, "lr3e-4"),
        "dropout": (0.1, "dropout-0.1"),
        "packing": (True, "packing-on"),
        "batch_size": (16, "bs16"),
        "lr_schedule": ("cosine", "cosine"),
        "rope_theta": (10_000.0, "rope-theta-10000"),
        "adam_epsilon": (1e-8, "adam-epsilon-1e-8"),
    }
    for name, (value, suffix) in suffixes.items():
        assert sweep.name_suffix(name, value) == suffix


def test_numbers_choices_and_booleans_can_be_swept_but_not_texts() -> None:
    names = sweep.sweepable_keys()
    assert {"learning_rate", "optimizer", "packing", "seed"} <= set(names)
    assert not {"data", "device", "tokenizer", "sample_prompts", "preset"} & set(names)
