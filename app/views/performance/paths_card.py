"""How a run computes: each fast path with a tick or a dash, which way was chosen, why, and what it brings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QVBoxLayout, QWidget

from app.theme.tokens import SPACE
from app.views import computing_words, words
from app.views.widgets import ElidedLabel, clear, heading, label
from trainer_core import engine_words
from trainer_core.protocol import FastPath

if TYPE_CHECKING:
    from app.state.computing import Computing

_COLUMNS: Final = ("mark", "name", "choice", "gain", "error", "reason")
_RIGHT: Final = ("gain", "error")
_LONG: Final = 24  # characters of a word
_MANY: Final = 3  # from so many on, one reason is told once
_BREAK: Final = "\u200b"  # of no width


class PathsCard(QFrame):
    """As high as it has rows; long reasons wrap, and stand on lines of their own in a narrow window."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("card")
        self._narrow = False
        self._computing: Computing | None = None
        self._title, self.facts, self.note = label("section"), ElidedLabel(), label("muted", wrap=True)
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(2 * SPACE)
        self._grid.setVerticalSpacing(SPACE // 2)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE + 4, SPACE, SPACE + 4, SPACE)
        layout.setSpacing(SPACE)
        layout.addLayout(heading(self._title, self.facts))
        layout.addWidget(self.note)
        layout.addLayout(self._grid)

    def fit(self, *, narrow: bool) -> None:
        if narrow is not self._narrow:
            self._narrow = narrow
            if self._computing is not None:
                self.display(self._computing)

    def display(self, computing: Computing) -> None:
        """Show it in the current language."""
        self._computing = computing
        self._title.setText(QCoreApplication.translate("Paths", "How this run computes"))
        self.facts.setText(_facts(computing))
        self.note.setText(_note(computing))
        self.note.setVisible(bool(self.note.text()))
        clear(self._grid)
        self._grid.setColumnStretch(_COLUMNS.index("reason"), 0 if self._narrow else 1)
        self._grid.setColumnStretch(_COLUMNS.index("name"), 1 if self._narrow else 0)
        if computing.paths:
            self._head()
        for place, paths in enumerate(_together(engine_words.in_order(computing.paths)), 1):
            if len(paths) == 1:
                self._row(2 * place, paths[0])
            else:
                self._shared_row(2 * place, paths)

    def texts(self) -> list[list[str]]:
        """The rows as they can be read, without the head."""
        found: dict[int, list[str]] = {}
        for place in range(self._grid.count()):
            item = self._grid.itemAt(place)
            widget = item.widget() if item else None
            row = self._grid.getItemPosition(place)[0]  # type: ignore[index]
            if row and isinstance(widget, QLabel):
                found.setdefault(row // 2, []).append(widget.text().replace(_BREAK, ""))
        return list(found.values())

    def _head(self) -> None:
        titles = {
            "name": QCoreApplication.translate("Paths", "Way"),
            "choice": QCoreApplication.translate("Paths", "Choice"),
            "gain": QCoreApplication.translate("Paths", "Gain"),
            "error": QCoreApplication.translate("Paths", "Difference"),
            "reason": QCoreApplication.translate("Paths", "Why"),
        }
        tips = {
            "gain": QCoreApplication.translate("Paths", "Times as fast as without, measured on this machine"),
            "error": QCoreApplication.translate("Paths", "Largest relative difference from the reference"),
        }
        for name, title in titles.items():
            if name == "reason" and self._narrow:
                continue
            self._put(0, name, title, "muted").setToolTip(tips.get(name, ""))

    def _row(self, row: int, path: FastPath) -> None:
        spoken, look = words.language(), "" if path.used else "muted"
        self._put_mark(row, used=path.used)
        self._put(row, "name", engine_words.path_name(path, spoken), look)
        self._put(row, "choice", engine_words.path_choice(path, spoken), look)
        self._put(row, "gain", "" if path.gain is None else engine_words.gain(path.gain), look)
        self._put(row, "error", "" if path.error is None else engine_words.error(path.error), look)
        self._put_reason(row, engine_words.path_reason(path, spoken))

    def _shared_row(self, row: int, paths: list[FastPath]) -> None:
        """Several that are left for the same reason: their names, and the reason once."""
        spoken = words.language()
        self._put_mark(row, used=False)
        names = label("muted", wrap=True)
        names.setText(QCoreApplication.translate("Paths", ", ").join(map(computing_words.short, paths)))
        name, reason = _COLUMNS.index("name"), _COLUMNS.index("reason")
        self._grid.addWidget(names, row, name, 1, reason - name, Qt.AlignmentFlag.AlignTop)
        self._put_reason(row, engine_words.path_reason(paths[0], spoken))

    def _put_mark(self, row: int, *, used: bool) -> None:
        mark = self._put(row, "mark", "✓" if used else "–", "good" if used else "muted")
        told = (
            QCoreApplication.translate("Paths", "in use") if used else QCoreApplication.translate("Paths", "not in use")
        )
        mark.setToolTip(told)
        mark.setAccessibleName(told)

    def _put(self, row: int, column: str, text: str, look: str) -> QLabel:
        cell = label(look)
        cell.setTextFormat(Qt.TextFormat.PlainText)
        cell.setText(text)
        side = Qt.AlignmentFlag.AlignRight if column in _RIGHT else Qt.AlignmentFlag.AlignLeft
        self._grid.addWidget(cell, row, _COLUMNS.index(column), side | Qt.AlignmentFlag.AlignTop)
        return cell

    def _put_reason(self, row: int, text: str) -> None:
        cell = label("muted", wrap=True)
        cell.setTextFormat(Qt.TextFormat.PlainText)
        cell.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        cell.setText(_breakable(text))
        name, reason = _COLUMNS.index("name"), _COLUMNS.index("reason")
        if self._narrow:
            self._grid.addWidget(cell, row + 1, name, 1, reason - name, Qt.AlignmentFlag.AlignTop)
        else:
            self._grid.addWidget(cell, row, reason, Qt.AlignmentFlag.AlignTop)


def _together(paths: list[FastPath]) -> list[list[FastPath]]:
    """In their order; many that are left for the same reason, and were not tried, as one."""
    groups: dict[object, list[FastPath]] = {}
    for place, path in enumerate(paths):
        untried = not path.used and path.gain is None and path.error is None
        reason = engine_words.path_reason(path, "en") if untried else ""
        groups.setdefault(reason or place, []).append(path)
    found: list[list[FastPath]] = []
    for group in groups.values():
        found += [group] if len(group) >= _MANY else [[path] for path in group]
    return found


def _breakable(text: str) -> str:
    """Room for a line break in words that are longer than a narrow column, such as a linker's symbols."""
    return re.sub(rf"\S{{{_LONG}}}(?=\S)", lambda word: word[0] + _BREAK, text)


def _facts(computing: Computing) -> str:
    """Device, precision, compile time."""
    told = [*map(computing_words.device, computing.devices[:1]), computing.precision]
    if computing.compile_s is not None:
        told.append(computing_words.compiled(computing.compile_s))
    return "  ·  ".join(filter(None, told))


def _note(computing: Computing) -> str:
    if not computing.paths:
        return QCoreApplication.translate("Paths", "The trainer of this run did not tell how it computes.")
    if not computing.of_run:
        return QCoreApplication.translate("Paths", "What this machine can do; what this run uses follows soon.")
    return ""
