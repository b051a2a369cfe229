"""File manager, clipboard and folders of the desktop."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from PySide6.QtCore import QProcess, QStandardPaths, QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication

_TIMEOUT_S: Final = 0.1


def open_folder(path: Path) -> bool:
    """Open a folder in the file manager; for a file or a missing path, the nearest existing folder."""
    folder = path
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder.resolve())))


def copy_text(text: str) -> None:
    """Copy a text to the clipboard."""
    QGuiApplication.clipboard().setText(text)


def start_traindeck(arguments: Sequence[str] = ()) -> None:
    """Start the launcher as a detached process. Without arguments it opens the window. Arguments contain no spaces."""
    root = Path(__file__).resolve().parents[2]
    if sys.platform == "win32":
        os.startfile(root / "train_gpu.bat", arguments=" ".join(arguments), show_cmd=7)  # SW_SHOWMINNOACTIVE
    else:  # the type checker follows platforms only through else
        QProcess.startDetached("/bin/sh", [str(root / "train_gpu.sh"), *arguments], str(root))


def documents_folder() -> Path:
    """Return the user's documents folder, or the home folder if there is none."""
    folder = Path(QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation))
    return first_existing([folder]) or Path.home()


def first_existing(folders: Iterable[Path]) -> Path | None:
    """Return the first existing folder, or None. Runs in a thread: a disconnected share blocks for half a minute."""
    results: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
    candidates = list(folders)

    def search() -> None:
        results.put(next((folder for folder in candidates if folder.is_dir()), None))

    threading.Thread(target=search, daemon=True).start()
    try:
        return results.get(timeout=_TIMEOUT_S)
    except queue.Empty:
        return None
