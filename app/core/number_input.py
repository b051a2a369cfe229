"""Numbers as typed text. No Qt."""

from __future__ import annotations

import unicodedata
from typing import Literal

from trainer_core.config import Knob

InputError = Literal["not_a_number", "not_whole", "not_allowed"]


def normalize_number(text: str) -> str:
    """Normalize a typed number for `float`. Full-width digits of a Chinese keyboard are accepted."""
    return unicodedata.normalize("NFKC", text).replace("−", "-").replace(" ", "")


def format_number(value: float) -> str:
    """Format a number as typed: `0.05`, `3e-4`."""
    if value and (abs(value) < 1e-2 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.9e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.10g}"


def input_error(knob: Knob, text: str) -> InputError:
    """Why a text is not a valid value."""
    number = normalize_number(text)
    if knob.kind not in ("int", "float") or not number:
        return "not_allowed"
    try:
        value = float(number)
    except ValueError:
        return "not_a_number"
    if value != value:  # NaN
        return "not_a_number"
    return "not_whole" if knob.kind == "int" and not value.is_integer() else "not_allowed"
