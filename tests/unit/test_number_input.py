"""What was typed for a number, and why it is not one."""

from __future__ import annotations

import pytest

from app.core.number_input import input_error, remove_separators
from trainer_core.config import knobs


@pytest.mark.parametrize(
    ("knob", "text", "wrong"),
    [
        ("batch_size", "", "empty"),
        ("batch_size", "  ", "empty"),
        ("batch_size", "many", "not_a_number"),
        ("batch_size", "2.5", "not_whole"),
        ("batch_size", "1e-1", "not_whole"),
        ("batch_size", "0", "out_of_range"),
        ("batch_size", "-3", "out_of_range"),
        ("max_seq_len", "1,024", "separators"),
        ("max_seq_len", "１，０２４", "separators"),
        ("max_seq_len", "4k", "unit"),
        ("max_seq_len", "1024 tokens", "unit"),
        ("save_steps", "500 步", "unit"),
        ("validation_fraction", "5%", "unit"),
        ("learning_rate", "3e", "not_a_number"),
        ("learning_rate", "3e-", "not_a_number"),
        ("learning_rate", "nan", "not_a_number"),
        ("learning_rate", "20", "out_of_range"),
        ("compile", "maybe", "not_allowed"),
    ],
)
def test_the_reason_is_found(knob: str, text: str, wrong: str) -> None:
    assert input_error(knobs()[knob], text) == wrong


@pytest.mark.parametrize(("text", "number"), [("1,024", "1024"), ("1'000'000", "1000000"), ("１，０２４", "1024")])
def test_a_number_with_separators_is_named_without(text: str, number: str) -> None:
    assert remove_separators(text) == number
