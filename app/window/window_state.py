"""Saves and restores the state of the window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from app.core.settings import Settings
from app.widgets.saved_state import decode_state, encode_state, restore_layout, save_layout

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
    window.restoreGeometry(decode_state(geometry))
    window.setWindowState(window.windowState() & ~(Qt.WindowState.WindowFullScreen | Qt.WindowState.WindowMinimized))


def save_window_state(settings: Settings, form: SetupForm, window: MainWindow) -> None:
    """Store form, pages and geometry. Invalid values are not stored."""
    settings.preset = form.preset.name
    settings.data = form.data
    settings.values = form.valid_changes()
    settings.geometry = encode_state(window.saveGeometry())
    window.save_state(settings)
    save_layout(settings, "main", window.splitter)
