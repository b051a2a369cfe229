"""Errors of the values of a sweep. All functions return an empty text if there is none."""

from __future__ import annotations

from typing import Final

from app.core import sweep
from app.core.number_input import normalize_number
from app.pages.setup.texts import format_input_error
from app.texts import tr
from app.widgets import formatting
from trainer_core.config import Knob

_MAX_QUOTED: Final = 3


def format_values_error(knob: Knob, text: str) -> str:
    """Error of comma-separated values."""
    if invalid := sweep.invalid_values(knob, text):
        return _format_invalid(knob, invalid)
    count = len(sweep.parse_values(knob, text))
    if not count:
        return tr("queue.at_least_one_value_needed")
    return tr("queue.at_most_count_values", count=sweep.MAX_VALUES) if count > sweep.MAX_VALUES else ""


def format_bound_error(knob: Knob, text: str, *, log_scale: bool) -> str:
    """Error of the first or last value of a range."""
    if invalid := sweep.invalid_values(knob, text):
        return _format_invalid(knob, invalid)
    values = sweep.parse_values(knob, text)
    if len(values) != 1:
        return tr("queue.one_value_needed_here")
    return tr("queue.value_does_not_fit_even", value=text.strip()) if log_scale and values[0] <= 0 else ""


def format_count_error(text: str) -> str:
    """Error of the number of values."""
    try:
        count = int(normalize_number(text))
    except ValueError:
        count = 0
    if count > sweep.MAX_VALUES:
        return tr("queue.at_most_count_values", count=sweep.MAX_VALUES)
    return "" if count >= 1 else tr("queue.value_does_not_fit_whole", value=text.strip(), count=sweep.MAX_VALUES)


def _format_invalid(knob: Knob, invalid: list[str]) -> str:
    quoted = tr("common.list_separator").join(f"“{value}”" for value in invalid[:_MAX_QUOTED])
    if len(invalid) > _MAX_QUOTED:
        quoted += "…"
    if len(invalid) > 1:
        return tr("queue.values_do_not_fit_allowed", values=quoted, range=formatting.format_allowed_values(knob))
    reason = format_input_error(knob, invalid[0])
    if invalid[0] in reason.split("”")[0]:  # quoted already
        return reason
    return tr("queue.value_does_not_fit_why", value=quoted, why=reason)
