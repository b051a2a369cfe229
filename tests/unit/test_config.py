"""Knobs: conversion, checks, and error messages."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml

from trainer_core.config import (
    Config,
    ConfigLayer,
    check_value,
    default_n_heads,
    knobs,
    resolve,
    to_dict,
)
from trainer_core.messages import TraindeckError


def error_of(name: str, value: Any) -> TraindeckError:
    with pytest.raises(TraindeckError) as caught:
        check_value(name, value, "config.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("batch_size", "16", 16),
        ("batch_size", 16.0, 16),
        ("learning_rate", "3e-4", 3e-4),
        ("learning_rate", 1, 1.0),
        ("use_wandb", "Yes", True),
        ("deterministic", "off", False),
        ("mixed_precision", False, "no"),  # YAML reads an unquoted `no` as a bool
        ("compile", False, "off"),
        ("compile", True, "on"),
        ("data", "a.txt", ["a.txt"]),
        ("data", ["a.txt", "b"], ["a.txt", "b"]),
        ("seed", str(2**63 - 1), 2**63 - 1),
        ("dropout", 0, 0.0),
        *[("device", name, name) for name in ("auto", "cpu", "cuda", "cuda:1")],
    ],
)
def test_a_value_is_converted_to_the_type_of_its_knob(name: str, value: object, expected: object) -> None:
    converted = check_value(name, value, "config.yaml")
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("batch_size", "0"),
        ("batch_size", 16.5),
        ("batch_size", True),
        ("batch_size", None),
        ("batch_size", "many"),
        ("batch_size", 10**30),
        ("batch_size", [1]),
        ("learning_rate", 0),
        ("learning_rate", "nan"),
        ("learning_rate", float("nan")),
        ("grad_clip", float("inf")),
        ("dropout", 1.0),
        ("use_wandb", 1),
        ("use_wandb", "maybe"),
        ("mixed_precision", True),
        ("mixed_precision", "bf61"),
        ("data_format", False),
        ("device", 0),
        ("data", None),
        ("data", [1]),
        ("seed", 2**63),
    ],
)
def test_an_invalid_value_is_reported_with_the_allowed_values(name: str, value: object) -> None:
    error = error_of(name, value)
    assert error.code == "config.bad_value"
    assert error.exit_code == 2
    assert error.params["name"] == name
    assert error.params["where"] == "config.yaml"
    assert error.params["allowed"] == knobs()[name].allowed()
    assert str(value) in str(error)


@pytest.mark.parametrize("typo", ["batchsize", "batch-sise", "Batch_Size"])
def test_an_unknown_key_is_reported_with_the_nearest_known_key(typo: str) -> None:
    error = error_of(typo, 4)
    assert (error.code, error.params["nearest"]) == ("config.unknown_key", "batch_size")


def test_a_dissimilar_key_has_no_suggestion() -> None:
    error = error_of("zzz", 4)
    assert (error.code, error.params) == ("config.no_such_key", {"where": "config.yaml", "name": "zzz"})


def test_a_later_layer_overrides_an_earlier_one() -> None:
    config = resolve([ConfigLayer("a", {"batch_size": 4, "n_layers": 2}), ConfigLayer("b", {"batch_size": "8"})])
    assert (config.batch_size, config.n_layers, config.hidden_dim) == (8, 2, Config().hidden_dim)


def test_max_epochs_alone_replaces_max_steps_of_a_lower_layer() -> None:
    preset = ConfigLayer("preset", {"max_steps": 400})
    assert resolve([preset, ConfigLayer("flags", {"max_epochs": "3"})]).max_steps == 0
    assert resolve([preset, ConfigLayer("flags", {"max_epochs": "3", "max_steps": "50"})]).max_steps == 50
    assert resolve([preset, ConfigLayer("flags", {"batch_size": "3"})]).max_steps == 400


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"hidden_dim": 100, "n_heads": 3}, "config.heads"),
        ({"hidden_dim": 12, "n_heads": 4}, "config.heads"),  # head_dim is 3; rotary embeddings need an even number
        ({"hidden_dim": 9}, "config.heads"),
        ({"hidden_dim": 256, "n_heads": 4, "n_kv_heads": 3}, "config.kv_heads"),
        ({"n_heads": 2, "n_kv_heads": 4}, "config.kv_heads"),
        ({"qkv_bias": True, "qk_norm": True}, "config.bias_and_norm"),
        ({"early_stop_patience": 3, "eval_steps": 0}, "config.early_stop_without_eval"),
    ],
)
def test_conflicting_knobs_are_rejected(values: dict[str, Any], code: str) -> None:
    with pytest.raises(TraindeckError) as caught:
        resolve([ConfigLayer("config.yaml", values)])
    assert caught.value.code == code


@pytest.mark.parametrize("hidden_dim", [8, 64, 96, 128, 192, 256, 320, 768, 1000, 4096])
def test_the_default_number_of_heads_divides_the_width(hidden_dim: int) -> None:
    heads = default_n_heads(hidden_dim)
    assert hidden_dim % heads == 0
    assert hidden_dim // heads % 2 == 0


def test_every_default_is_valid() -> None:
    for name, spec in knobs().items():
        assert check_value(name, spec.default, "defaults") == spec.default


def test_a_configuration_is_unchanged_after_writing_and_reading_yaml() -> None:
    config = resolve([ConfigLayer("x", {"data": ["中文 文件.txt"], "learning_rate": 3e-5, "mixed_precision": "no"})])
    text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    assert resolve([ConfigLayer("file", yaml.safe_load(text))]) == config


def test_lists_are_not_shared_between_configurations() -> None:
    Config().data.append("a.txt")
    assert Config().data == []


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("batch_size", "a whole number >= 1 and <= 65536"),
        ("learning_rate", "a number > 0 and <= 10"),
        ("dropout", "a number >= 0 and < 1"),
        ("seed", "a whole number >= 0 and <= 9223372036854775807"),
        ("use_wandb", "true, false"),
        ("lr_schedule", "cosine, linear, constant, plateau"),
    ],
)
def test_allowed_values_are_described_exactly(name: str, description: str) -> None:
    assert knobs()[name].allowed() == description


def test_resolving_a_configuration_takes_less_than_30_milliseconds() -> None:
    """The window resolves the configuration on every key stroke."""
    values = to_dict(Config())
    resolve([ConfigLayer("warm", values)])
    start = time.perf_counter()
    resolve([ConfigLayer("config.yaml", values)])
    assert time.perf_counter() - start < 0.03


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CPU", "", "cpu\n"])
def test_an_invalid_device_is_reported_with_the_allowed_forms(device: str) -> None:
    with pytest.raises(TraindeckError) as caught:
        check_value("device", device, "config.yaml")
    assert caught.value.code == "config.bad_value"
    assert caught.value.params["allowed"] == "auto, cpu, cuda, cuda:N"
