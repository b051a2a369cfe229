"""Errors and format of typed numbers."""

from __future__ import annotations

from app.core.number_input import format_number
from app.pages.setup.texts import format_input_error
from trainer_core.config import knobs


def test_input_errors_are_explained() -> None:
    for knob, text, message in (
        ("batch_size", "  ", ""),
        ("batch_size", "many", "“many” is not a number."),
        ("batch_size", "2.5", "2.5 is not an integer."),
        ("batch_size", "inf", "inf is not an integer."),
        ("batch_size", "-3", ""),
        ("max_seq_len", "1024 tokens", "“1024 tokens” is not a number."),
        ("learning_rate", "3e-", "“3e-” is not a number."),
        ("learning_rate", "nan", "“nan” is not a number."),
        ("learning_rate", "２０", ""),
    ):
        assert format_input_error(knobs()[knob], text).startswith(message or "Allowed: "), (knob, text)


def test_numbers_are_formatted_as_users_type_them() -> None:
    for value, text in ((0.05, "0.05"), (3e-4, "3e-4"), (0.0, "0"), (10_000.0, "10000"), (1.5e6, "1.5e6")):
        assert format_number(value) == text
