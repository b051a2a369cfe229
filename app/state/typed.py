"""Numbers as one types them, and what is wrong with a text that was typed for one. No Qt."""

from __future__ import annotations

import re
import unicodedata
from typing import Final, Literal

from trainer_core.config import Knob

Wrong = Literal["empty", "not_a_number", "not_whole", "separators", "unit", "out_of_range", "not_allowed"]

_NUMBER: Final = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_SEPARATED: Final = re.compile(r"[+-]?\d{1,3}(?:[,'_]\d{3})+(?:\.\d+)?")
_WITH_UNIT: Final = re.compile(rf"{_NUMBER}(?:(?!e$)[^\W\d_][\w/%°]*|%)", re.IGNORECASE)  # `3e` may become 3e-4


def plain(text: str) -> str:
    """As `check_value` wants a number. Full-width digits, as a Chinese keyboard types them, are digits too."""
    return unicodedata.normalize("NFKC", text).replace("−", "-").replace(" ", "")


def as_typed(value: float) -> str:
    """A number as one would type it: `0.05`, `3e-4`."""
    shown = f"{value:.10g}"
    if value and (abs(value) < 1e-2 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.9e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return shown


def what_is_wrong(knob: Knob, text: str) -> Wrong:
    """Why a text that is not allowed is not."""
    if knob.kind not in ("int", "float"):
        return "not_allowed"
    number = plain(text)
    if not number:
        return "empty"
    if _SEPARATED.fullmatch(number):
        return "separators"
    if re.fullmatch(_NUMBER, number, re.IGNORECASE):
        return "not_whole" if knob.kind == "int" and not float(number).is_integer() else "out_of_range"
    return "unit" if _WITH_UNIT.fullmatch(number) else "not_a_number"


def without_separators(text: str) -> str:
    """`1024` of `1,024`."""
    return re.sub(r"[,'_]", "", plain(text))
