"""Why Start cannot be pressed, in words."""

from __future__ import annotations

from collections.abc import Container

from PySide6.QtCore import QCoreApplication

from app.i18n.knob_words import knob_words
from app.views import words
from app.views.setup.form import SetupForm
from trainer_core.config import knobs
from trainer_core.run_dir import safe_name


def blocking_reason(form: SetupForm, taken: Container[str]) -> str:
    """The first thing to put right; empty when the run can start. `taken`: names of runs that exist."""
    wrong = form.wrong()
    if wrong:
        knob = knobs()[wrong[0]]
        text = QCoreApplication.translate("Blocked", "{setting} must be {range}")
        return text.format(setting=knob_words(words.language()).label(knob), range=words.allowed(knob))
    if form.preset is None:
        return QCoreApplication.translate("Blocked", "Choose a preset")
    if not form.data:
        return QCoreApplication.translate("Blocked", "Add a file or a folder to train on")
    if form.run_name and safe_name(form.run_name) in taken:
        return QCoreApplication.translate("Blocked", "There is already a run of this name")
    conflict = form.conflict()
    return words.message(conflict.code, conflict.params) if conflict else ""
