"""What can be done with the selected runs: by key while the table has the focus, from its menu, and from buttons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QMenu, QPushButton, QWidget

from app.state.runs.run_rows import Row

_KEYS: Final = {"rename": "F2", "delete": "Del", "show": "Space", "compare": "Ctrl+D", "archive": "Ctrl+E"}
_MENU: Final = ("open", "resume", "", "show", "compare", "", "rename", "archive", "folder", "", "delete")


class RunsActions(QObject):
    """`all` holds them by name. `buttons` follow the actions of the same names."""

    def __init__(self, table: QWidget, does: Mapping[str, Callable[[], None]], buttons: dict[str, QPushButton]) -> None:
        super().__init__(table)
        self.menu = QMenu(table)
        self.all: dict[str, QAction] = {}
        self._buttons = buttons
        for name in _MENU:
            if name:
                self._add(name, table, does[name])
            else:
                self.menu.addSeparator()
        for name, pressed in buttons.items():
            pressed.clicked.connect(self.all[name].trigger)

    def _add(self, name: str, table: QWidget, does: Callable[[], None]) -> None:
        action = self.all[name] = QAction(table)
        if name in _KEYS:
            action.setShortcut(QKeySequence(_KEYS[name]))
            action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
            table.addAction(action)
        action.triggered.connect(lambda: does())
        self.menu.addAction(action)

    def allow(self, rows: Sequence[Row], *, can_resume: bool) -> None:
        """What is possible with these; `can_resume`: this window trains nothing just now."""
        one = rows[0].run if len(rows) == 1 else None
        running = any(row.run.state == "running" for row in rows)
        possible = {
            "open": one is not None,
            "folder": one is not None,
            "resume": one is not None and one.resumable and can_resume,
            "rename": one is not None and not running,
            "delete": bool(rows),
            "archive": bool(rows),
            "show": bool(rows),
            "compare": len(rows) >= 2,
        }
        for name, allowed in possible.items():
            self.all[name].setEnabled(allowed)
        for name, pressed in self._buttons.items():
            pressed.setEnabled(possible[name])

    def word(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            self.all[name].setText(text)
            if name in self._buttons:
                self._buttons[name].setText(text)
