"""Parses numbers as typed, and explains errors. No Qt."""

from __future__ import annotations

import re
import unicodedata
from typing import Final, Literal

from trainer_core.config import Knob

InputError = Literal["empty", "not_a_number", "not_whole", "separators", "unit", "out_of_range", "not_allowed"]

_NUMBER: Final = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_WITH_SEPARATORS: Final = re.compile(r"[+-]?\d{1,3}(?:[,'_]\d{3})+(?:\.\d+)?")
_WITH_UNIT: Final = re.compile(rf"{_NUMBER}(?:(?!e$)[^\W\d_][\w/%°]*|%)", re.IGNORECASE)  # `3e` may become 3e-4


def normalize_number(text: str) -> str:
    """Normalize a typed number for `float`. Full-width digits of a Chinese keyboard are accepted."""
    return unicodedata.normalize("NFKC", text).replace("−", "-").replace(" ", "")


def format_number(value: float) -> str:
    """Format a number as typed: `0.05`, `3e-4`."""
    shown = f"{value:.10g}"
    if value and (abs(value) < 1e-2 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.9e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return shown


def input_error(knob: Knob, text: str) -> InputError:
    """Why a text is not a valid value."""
    if knob.kind not in ("int", "float"):
        return "not_allowed"
    number = normalize_number(text)
    if not number:
        return "empty"
    if _WITH_SEPARATORS.fullmatch(number):
        return "separators"
    if re.fullmatch(_NUMBER, number, re.IGNORECASE):
        return "not_whole" if knob.kind == "int" and not float(number).is_integer() else "out_of_range"
    return "unit" if _WITH_UNIT.fullmatch(number) else "not_a_number"


def remove_separators(text: str) -> str:
    """`1024` from `1,024`."""
    return re.sub(r"[,'_]", "", normalize_number(text))
