"""The desktop around the window: its file manager and its clipboard."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QStandardPaths, QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication

from app.core.folders import first_existing


def open_folder(path: Path) -> bool:
    """Show a folder in the file manager; for a file or a missing path, the nearest folder that exists."""
    folder = path
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder.resolve())))


def copy_text(text: str) -> None:
    """Put a text on the clipboard."""
    QGuiApplication.clipboard().setText(text)


def documents_folder() -> Path:
    """Where the person keeps documents; the home folder where there is no such place."""
    place = Path(QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation))
    return first_existing([place]) or Path.home()
