"""Ctrl+Z in a field of the form is the form's: an editor that undoes by itself would leave the two at odds."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject
from PySide6.QtGui import QKeyEvent, QKeySequence

_KEYS = (QKeySequence.StandardKey.Undo, QKeySequence.StandardKey.Redo)


class UndoKeys(QObject):
    """An event filter for editors: they do not take the keys of undo and redo, so that the menu's entries do."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 - Qt's name
        if event.type() != QEvent.Type.ShortcutOverride or not isinstance(event, QKeyEvent):
            return False
        if not any(map(event.matches, _KEYS)):
            return False
        event.ignore()
        return True
