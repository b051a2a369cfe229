"""Reason why a run cannot start, and the field to correct."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from app.knob_texts import knob_label
from app.pages.setup.form import SetupForm
from app.texts import tr
from app.widgets import formatting
from trainer_core.config import knobs
from trainer_core.runs.run_dir import safe_name


@dataclass(frozen=True, slots=True)
class StartBlocker:
    """Translated reason. `field`: `preset`, `data`, `name` or the name of a setting; empty: none."""

    text: str
    field: str


def find_blocker(form: SetupForm, existing_names: Container[str] = ()) -> StartBlocker | None:
    """The first reason why a run cannot start. `existing_names`: of runs on disk."""
    invalid = form.invalid_knobs()
    if invalid:
        knob = knobs()[invalid[0]]
        if form.is_missing(knob.name):
            return StartBlocker(tr("setup.there_no_tokenizer_where_said"), knob.name)
        values = formatting.format_allowed_values(knob)
        return StartBlocker(tr("setup.setting_must_be_range", setting=knob_label(knob), range=values), knob.name)
    if form.preset is None:
        return StartBlocker(tr("setup.choose_a_preset"), "preset")
    if not form.data:
        return StartBlocker(tr("setup.add_file_or_folder_train"), "data")
    if form.run_name and safe_name(form.run_name) in existing_names:
        return StartBlocker(tr("setup.there_already_run_this_name"), "name")
    conflict = form.conflict()
    if conflict is None:
        return None
    text = formatting.localized_message(conflict.code, conflict.params)
    return StartBlocker(text, next(iter(form.conflicting_knobs()), ""))


def blocking_reason(form: SetupForm) -> str:
    """Text of the first reason; empty if the run can start."""
    blocker = find_blocker(form)
    return blocker.text if blocker else ""
