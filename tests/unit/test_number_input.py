"""Errors and format of typed numbers."""

from __future__ import annotations

from app.core.number_input import format_number, input_error
from trainer_core.config import knobs


def test_input_errors_are_classified() -> None:
    for knob, text, error in (
        ("batch_size", "  ", "not_allowed"),
        ("batch_size", "many", "not_a_number"),
        ("batch_size", "2.5", "not_whole"),
        ("batch_size", "1e-1", "not_whole"),
        ("batch_size", "inf", "not_whole"),
        ("batch_size", "-3", "not_allowed"),
        ("max_seq_len", "1,024", "not_a_number"),
        ("max_seq_len", "1024 tokens", "not_a_number"),
        ("learning_rate", "3e-", "not_a_number"),
        ("learning_rate", "nan", "not_a_number"),
        ("learning_rate", "２０", "not_allowed"),
        ("compile", "maybe", "not_allowed"),
    ):
        assert input_error(knobs()[knob], text) == error, (knob, text)


def test_numbers_are_formatted_as_typed() -> None:
    for value, text in ((0.05, "0.05"), (3e-4, "3e-4"), (0.0, "0"), (10_000.0, "10000"), (1.5e6, "1.5e6")):
        assert format_number(value) == text
