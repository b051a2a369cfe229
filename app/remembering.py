"""What the window takes from the settings when it starts, and leaves in them for the next time."""

from __future__ import annotations

import base64
import contextlib

from PySide6.QtCore import QByteArray

from app.state.settings import Settings
from app.views.main_window import MainWindow
from app.views.setup.form import SetupForm


def restore(settings: Settings, form: SetupForm, window: MainWindow) -> None:
    """Fill in the form (its preset is chosen already) and put the window where it was."""
    if settings.preset:
        form.restore(settings.data, settings.values)
    form.forget_steps()
    window.setup.data.recent = settings.recent_data
    window.plots.restore(settings.smoothing, log_scale=settings.log_scale, axis=settings.x_axis)
    with contextlib.suppress(ValueError):
        if settings.geometry:
            window.restoreGeometry(QByteArray(base64.b64decode(settings.geometry)))
        if "main" in settings.splitters:
            window.splitter.restoreState(QByteArray(base64.b64decode(settings.splitters["main"])))


def take(settings: Settings, form: SetupForm, window: MainWindow) -> None:
    """Write down what there is now. Values that are wrong are not worth remembering."""
    settings.preset = form.preset.name if form.preset else ""
    settings.data = form.data
    settings.values = {} if form.wrong() else form.changes()
    settings.smoothing, settings.log_scale, settings.x_axis = window.plots.choices()
    settings.geometry = _base64(window.saveGeometry())
    settings.splitters["main"] = _base64(window.splitter.saveState())


def _base64(content: QByteArray) -> str:
    return base64.b64encode(content.data()).decode("ascii")
