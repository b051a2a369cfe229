"""What is wrong with the values of a sweep, in words; empty: nothing."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QCoreApplication

from app.state import sweep
from app.state.typed import plain
from app.views import words
from app.views.setup import typed_words
from trainer_core.config import Knob

_MOST_NAMED: Final = 3


def of_values(knob: Knob, text: str) -> str:
    """Of values with commas between them."""
    wrong = sweep.refused(knob, text)
    if wrong:
        return _refused(knob, wrong)
    count = len(sweep.typed(knob, text))
    return at_least_one() if not count else _too_many() if count > sweep.MOST_VALUES else ""


def of_end(knob: Knob, text: str, *, factors: bool) -> str:
    """Of the first or the last of even steps, or of even `factors`."""
    wrong = sweep.refused(knob, text)
    if wrong:
        return _refused(knob, wrong)
    values = sweep.typed(knob, text)
    if len(values) != 1:
        return QCoreApplication.translate("Sweep", "One value is needed here.")
    if factors and values[0] <= 0:
        return QCoreApplication.translate(
            "Sweep", "“{value}” does not fit: even factors go from a number above 0."
        ).format(value=text.strip())
    return ""


def of_count(text: str) -> str:
    """Of the number of values."""
    try:
        count = int(plain(text))
    except ValueError:
        count = 0
    if count > sweep.MOST_VALUES:
        return _too_many()
    if count < 1:
        said = QCoreApplication.translate(
            "Sweep", "“{value}” does not fit: a whole number from 1 to {count} is needed."
        )
        return said.format(value=text.strip(), count=sweep.MOST_VALUES)
    return ""


def at_least_one() -> str:
    return QCoreApplication.translate("Sweep", "At least one value is needed.")


def _too_many() -> str:
    return QCoreApplication.translate("Sweep", "At most {count} values.").format(count=sweep.MOST_VALUES)


def _refused(knob: Knob, wrong: list[str]) -> str:
    """Which values no run takes, and which it does."""
    named = QCoreApplication.translate("Sweep", ", ").join(f"“{value}”" for value in wrong[:_MOST_NAMED])
    if len(wrong) > _MOST_NAMED:
        named += "…"
    if len(wrong) > 1:
        said = QCoreApplication.translate("Sweep", "{values} do not fit. Allowed: {range}")
        return said.format(values=named, range=words.allowed(knob))
    why = typed_words.problem(knob, wrong[0])
    if wrong[0] in why.split("”")[0]:
        return why
    return QCoreApplication.translate("Sweep", "{value} does not fit. {why}").format(value=named, why=why)
