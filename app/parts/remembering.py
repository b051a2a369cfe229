"""What the window takes from the settings when it starts, and leaves in them for the next time."""

from __future__ import annotations

import base64
import contextlib
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QByteArray, QRect, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QSplitter, QWidget

from app.state.settings import Settings

if TYPE_CHECKING:
    from app.views.main_window import MainWindow
    from app.views.setup.form import SetupForm

_TITLE: Final = 30  # about the height of a title bar
_GRIP: Final = 80  # of its width, to be taken hold of


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
    place(settings.geometry, window)
    restore_splitter(settings, "main", window.splitter)
    if settings.page in window.pages:
        window.show_page(settings.page)


def place(geometry: str, window: QWidget) -> None:
    """Put a window where it was: maximised too, but never filling the screen without its frame, and where it can be
    seen. The screen that it was on may be gone, or be smaller now."""
    with contextlib.suppress(ValueError):
        if geometry:
            window.restoreGeometry(QByteArray(base64.b64decode(geometry)))
    window.setWindowState(window.windowState() & ~(Qt.WindowState.WindowFullScreen | Qt.WindowState.WindowMinimized))
    frame = window.geometry()
    title = QRect(frame.x(), frame.y() - _TITLE, frame.width(), _TITLE)
    screens = [screen.availableGeometry() for screen in QGuiApplication.screens()]
    if any(_grip(title & screen) for screen in screens):
        return
    room = QGuiApplication.primaryScreen().availableGeometry()
    frame.setSize(frame.size().boundedTo(room.size()).expandedTo(window.minimumSize()))
    frame.moveCenter(room.center())
    window.setGeometry(frame)


def _grip(seen: QRect) -> bool:
    """Whether so much of the title bar can be seen that one can move the window by it."""
    return seen.width() >= _GRIP and seen.height() > 0


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
    settings.page = window.page
    take_splitter(settings, "main", window.splitter)


def restore_splitter(settings: Settings, name: str, splitter: QSplitter) -> None:
    with contextlib.suppress(ValueError):
        if name in settings.splitters:
            splitter.restoreState(QByteArray(base64.b64decode(settings.splitters[name])))


def take_splitter(settings: Settings, name: str, splitter: QSplitter) -> None:
    settings.splitters[name] = _base64(splitter.saveState())


def _base64(content: QByteArray) -> str:
    return base64.b64encode(content.data()).decode("ascii")
