"""Why Start cannot be pressed, in words, and where that is put right."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from PySide6.QtCore import QCoreApplication

from app.i18n.knob_words import knob_words
from app.views import words
from app.views.setup.form import SetupForm
from trainer_core.config import knobs
from trainer_core.runs.run_dir import safe_name


@dataclass(frozen=True, slots=True)
class Blocked:
    """`place`: `preset`, `data`, `name`, or the name of a knob; empty where no field is to blame."""

    text: str
    place: str


def blocked(form: SetupForm, taken: Container[str]) -> Blocked | None:
    """The first thing to put right; None when the run can start. `taken`: names of runs that exist."""
    wrong = form.wrong()
    if wrong:
        knob = knobs()[wrong[0]]
        if form.is_gone(knob.name):
            return Blocked(
                QCoreApplication.translate("Blocked", "There is no tokenizer where it is said to be"), knob.name
            )
        text = QCoreApplication.translate("Blocked", "{setting} must be {range}")
        setting = knob_words(words.language()).label(knob)
        return Blocked(text.format(setting=setting, range=words.allowed(knob)), knob.name)
    if form.preset is None:
        return Blocked(QCoreApplication.translate("Blocked", "Choose a preset"), "preset")
    if not form.data:
        return Blocked(QCoreApplication.translate("Blocked", "Add a file or a folder to train on"), "data")
    if form.run_name and safe_name(form.run_name) in taken:
        return Blocked(QCoreApplication.translate("Blocked", "There is already a run of this name"), "name")
    conflict = form.conflict()
    if conflict is None:
        return None
    return Blocked(words.message(conflict.code, conflict.params), next(iter(form.blamed()), ""))


def blocking_reason(form: SetupForm, taken: Container[str]) -> str:
    """The first thing to put right, in words; empty when the run can start."""
    found = blocked(form, taken)
    return found.text if found else ""
