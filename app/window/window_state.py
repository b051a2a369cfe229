"""Saves and restores the state of the window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QByteArray, Qt
from PySide6.QtWidgets import QHeaderView, QSplitter, QWidget

from app.core.settings import Settings

if TYPE_CHECKING:
    from app.pages.setup.form import SetupForm
    from app.window.main_window import MainWindow


def restore_window_state(settings: Settings, form: SetupForm, window: MainWindow) -> None:
    """Restore pages and geometry. The form is already restored."""
    form.undo_stack.clear()
    window.setup.data.recent = settings.recent_data
    restore_geometry(settings.geometry, window)
    restore_layout(settings, "main", window.splitter)
    window.restore_state(settings)


def restore_geometry(geometry: str, window: QWidget) -> None:
    """Restore position and size, also maximized, but not full screen or minimized. Qt moves the window onto a screen
    where its own was removed."""
    window.restoreGeometry(_decode(geometry))
    window.setWindowState(window.windowState() & ~(Qt.WindowState.WindowFullScreen | Qt.WindowState.WindowMinimized))


def save_window_state(settings: Settings, form: SetupForm, window: MainWindow) -> None:
    """Store form, pages and geometry. Invalid values are not stored."""
    settings.preset = form.preset.name
    settings.data = form.data
    settings.values = {} if form.invalid_knobs else form.changes()
    settings.geometry = _encode(window.saveGeometry())
    window.save_state(settings)
    save_layout(settings, "main", window.splitter)


def restore_layout(settings: Settings, name: str, widget: QSplitter | QHeaderView) -> None:
    widget.restoreState(_decode(settings.layouts.get(name, "")))


def save_layout(settings: Settings, name: str, widget: QSplitter | QHeaderView) -> None:
    settings.layouts[name] = _encode(widget.saveState())


def _encode(content: QByteArray) -> str:
    return content.toBase64().toStdString()


def _decode(text: str) -> QByteArray:
    return QByteArray.fromBase64(text.encode("utf-8"))
