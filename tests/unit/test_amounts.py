"""Bytes in words."""

from __future__ import annotations

import pytest

from app.widgets import formatting
from trainer_core.messages import amounts


@pytest.mark.parametrize(
    ("amount", "told"),
    [
        (1536, "1.5 KiB"),
        (76_900, "75.1 KiB"),
        (104_900, "102.4 KiB"),
        (1_100_000, "1.0 MiB"),
        (700 * 2**20, "700 MiB"),
        (1.5 * 2**30, "1.5 GiB"),
    ],
)
def test_a_size_is_told_in_the_unit_it_has_one_of_in_the_terminal_and_in_the_window(amount: float, told: str) -> None:
    assert amounts.format_bytes(amount) == told
    assert formatting.format_file_size(amount) == told


def test_a_file_of_a_few_bytes_is_told_in_bytes() -> None:
    assert formatting.format_file_size(12) == "12 B"
