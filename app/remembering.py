"""What the window takes from the settings when it starts, and leaves in them for the next time."""

from __future__ import annotations

import base64
import contextlib
from typing import TYPE_CHECKING

from PySide6.QtCore import QByteArray
from PySide6.QtWidgets import QSplitter

from app.state.settings import Settings

if TYPE_CHECKING:
    from app.views.main_window import MainWindow
    from app.views.setup.form import SetupForm


def restore(settings: Settings, form: SetupForm, window: MainWindow) -> None:
    """Fill in the form (its preset is chosen already) and put the window where it was."""
    if settings.preset:
        form.restore(settings.data, settings.values)
    form.forget_steps()
    window.setup.data.recent = settings.recent_data
    window.plots.restore(
        settings.smoothing,
        log_scale=settings.log_scale,
        clip=settings.clip_outliers,
        axis=settings.x_axis,
        sub_page=settings.plots_page,
    )
    with contextlib.suppress(ValueError):
        if settings.geometry:
            window.restoreGeometry(QByteArray(base64.b64decode(settings.geometry)))
    restore_splitter(settings, "main", window.splitter)


def take(settings: Settings, form: SetupForm, window: MainWindow) -> None:
    """Write down what there is now. Values that are wrong are not worth remembering."""
    settings.preset = form.preset.name if form.preset else ""
    settings.data = form.data
    settings.values = {} if form.wrong() else form.changes()
    plots = window.plots
    settings.smoothing, settings.x_axis = plots.controls.weight, plots.controls.axis
    settings.log_scale, settings.clip_outliers = plots.controls.log_scale.isChecked(), plots.controls.clip.isChecked()
    settings.plots_page = plots.sub_page
    settings.geometry = _base64(window.saveGeometry())
    take_splitter(settings, "main", window.splitter)


def restore_splitter(settings: Settings, name: str, splitter: QSplitter) -> None:
    with contextlib.suppress(ValueError):
        if name in settings.splitters:
            splitter.restoreState(QByteArray(base64.b64decode(settings.splitters[name])))


def take_splitter(settings: Settings, name: str, splitter: QSplitter) -> None:
    settings.splitters[name] = _base64(splitter.saveState())


def _base64(content: QByteArray) -> str:
    return base64.b64encode(content.data()).decode("ascii")
