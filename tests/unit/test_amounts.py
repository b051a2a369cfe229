"""Formatting of byte counts."""

from __future__ import annotations

import pytest

from app.widgets import formatting
from trainer_core.messages import amounts


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1536, "1.5 KiB"),
        (76_900, "75.1 KiB"),
        (104_900, "102.4 KiB"),
        (1_100_000, "1.0 MiB"),
        (700 * 2**20, "700 MiB"),
        (1.5 * 2**30, "1.5 GiB"),
    ],
)
def test_sizes_have_the_same_unit_in_the_terminal_and_the_window(size: float, text: str) -> None:
    assert amounts.format_bytes(size) == text
    assert formatting.format_file_size(size) == text


def test_a_few_bytes_are_shown_in_bytes() -> None:
    assert formatting.format_file_size(12) == "12 B"
