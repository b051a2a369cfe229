"""What is wrong with a text in a knob's field, in words."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication

from app.i18n.knob_words import knob_words
from app.state.typed import what_is_wrong, without_separators
from app.views import words
from trainer_core.config import Knob

_LONGEST = 24  # characters of what was typed, said again


def problem(knob: Knob, text: str) -> str:
    """Why the text is not allowed, and what is."""
    allowed = QCoreApplication.translate("KnobField", "Allowed: {range}").format(range=words.allowed(knob))
    given = text.strip() if len(text.strip()) <= _LONGEST else f"{text.strip()[:_LONGEST]}…"
    match what_is_wrong(knob, text):
        case "not_a_number":
            reason = QCoreApplication.translate("KnobField", "“{text}” is not a number.").format(text=given)
        case "not_whole":
            reason = QCoreApplication.translate("KnobField", "{text} is not a whole number.").format(text=given)
        case "separators":
            plain = without_separators(text)
            reason = QCoreApplication.translate("KnobField", "Without separators: {number}.").format(number=plain)
        case "unit":
            reason = _without_unit(knob)
        case _:
            return allowed
    return QCoreApplication.translate("KnobField", "{reason} {allowed}").format(reason=reason, allowed=allowed)


def gone() -> str:
    """Of a tokenizer."""
    return QCoreApplication.translate("KnobField", "There is no tokenizer.json here, nor a folder that holds one.")


def _without_unit(knob: Knob) -> str:
    if not knob.unit:
        return QCoreApplication.translate("KnobField", "Only the number, without a unit.")
    unit = knob_words(words.language()).unit(knob)
    return QCoreApplication.translate("KnobField", "Only the number: it counts {unit}.").format(unit=unit)
