"""Card of the fast paths: whether each is in use, the variant, the speedup, and the reason."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QVBoxLayout

from app.pages.performance import execution_texts
from app.texts import current_language, tr
from app.theme.palette import SPACING
from app.widgets.basic import ElidedLabel, card_header, clear_layout, label
from trainer_core import performance_texts
from trainer_core.protocol import FastPath

if TYPE_CHECKING:
    from app.core.execution_info import ExecutionInfo

_COLUMNS: Final = ("mark", "name", "choice", "speedup", "error", "reason")
_RIGHT: Final = ("speedup", "error")
_MAX_WORD_LENGTH: Final = 24  # characters
_MIN_GROUP: Final = 3  # fast paths that share a row if they have the same reason
_LINE_BREAK: Final = "\u200b"  # zero-width space


class FastPathsCard(QFrame):
    """In a narrow window, reasons have rows of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("card")
        self._narrow = False
        self._execution: ExecutionInfo | None = None
        self._title, self.facts, self.note = label("section"), ElidedLabel(), label("muted", wrap=True)
        self._grid = QGridLayout()
        self._grid.setHorizontalSpacing(2 * SPACING)
        self._grid.setVerticalSpacing(SPACING // 2)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACING + 4, SPACING, SPACING + 4, SPACING)
        layout.setSpacing(SPACING)
        layout.addLayout(card_header(self._title, self.facts))
        layout.addWidget(self.note)
        layout.addLayout(self._grid)

    def set_narrow(self, narrow: bool) -> None:
        self._narrow = narrow
        if self._execution is not None:
            self.display(self._execution)

    def display(self, execution: ExecutionInfo) -> None:
        self._execution = execution
        self._title.setText(tr("performance.how_this_run_computes"))
        self.facts.setText(_facts(execution))
        self.note.setText(_note(execution))
        self.note.setVisible(bool(self.note.text()))
        clear_layout(self._grid)
        self._grid.setColumnStretch(_COLUMNS.index("reason"), 0 if self._narrow else 1)
        self._grid.setColumnStretch(_COLUMNS.index("name"), 1 if self._narrow else 0)
        if execution.fast_paths:
            self._add_header()
        for number, paths in enumerate(_group(performance_texts.sort_fast_paths(execution.fast_paths)), 1):
            if len(paths) == 1:
                self._add_row(2 * number, paths[0])
            else:
                self._add_shared_row(2 * number, paths)

    def _add_header(self) -> None:
        titles = {
            "name": tr("performance.way"),
            "choice": tr("performance.choice"),
            "speedup": tr("performance.speedup"),
            "error": tr("performance.difference"),
            "reason": tr("performance.why"),
        }
        tips = {
            "speedup": tr("performance.times_as_fast_as_without"),
            "error": tr("performance.largest_relative_difference_from_reference"),
        }
        for name, title in titles.items():
            if name == "reason" and self._narrow:
                continue
            self._add_cell(0, name, title, "muted").setToolTip(tips.get(name, ""))

    def _add_row(self, row: int, path: FastPath) -> None:
        language, style = current_language(), "" if path.used else "muted"
        self._add_mark(row, used=path.used)
        self._add_cell(row, "name", performance_texts.fast_path_label(path, language), style)
        self._add_cell(row, "choice", performance_texts.fast_path_choice(path, language), style)
        speedup = "" if path.speedup is None else performance_texts.format_speedup(path.speedup)
        self._add_cell(row, "speedup", speedup, style)
        self._add_cell(row, "error", "" if path.error is None else performance_texts.format_error(path.error), style)
        self._add_reason(row, performance_texts.fast_path_reason(path, language))

    def _add_shared_row(self, row: int, paths: list[FastPath]) -> None:
        """Add one row for several unused fast paths with the same reason."""
        language = current_language()
        self._add_mark(row, used=False)
        names = label("muted", wrap=True)
        names.setText(tr("performance.list_separator").join(map(execution_texts.format_fast_path, paths)))
        name, reason = _COLUMNS.index("name"), _COLUMNS.index("reason")
        self._grid.addWidget(names, row, name, 1, reason - name, Qt.AlignmentFlag.AlignTop)
        self._add_reason(row, performance_texts.fast_path_reason(paths[0], language))

    def _add_mark(self, row: int, *, used: bool) -> None:
        mark = self._add_cell(row, "mark", "✓" if used else "–", "good" if used else "muted")
        text = tr("performance.in_use") if used else tr("performance.not_in_use")
        mark.setToolTip(text)
        mark.setAccessibleName(text)

    def _add_cell(self, row: int, column: str, text: str, style: str) -> QLabel:
        cell = label(style)
        cell.setText(text)
        side = Qt.AlignmentFlag.AlignRight if column in _RIGHT else Qt.AlignmentFlag.AlignLeft
        self._grid.addWidget(cell, row, _COLUMNS.index(column), side | Qt.AlignmentFlag.AlignTop)
        return cell

    def _add_reason(self, row: int, text: str) -> None:
        cell = label("muted", wrap=True)
        cell.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        cell.setText(_breakable(text))
        name, reason = _COLUMNS.index("name"), _COLUMNS.index("reason")
        if self._narrow:
            self._grid.addWidget(cell, row + 1, name, 1, reason - name, Qt.AlignmentFlag.AlignTop)
        else:
            self._grid.addWidget(cell, row, reason, Qt.AlignmentFlag.AlignTop)


def _group(paths: list[FastPath]) -> list[list[FastPath]]:
    """Group fast paths that were not measured and have the same reason; keep the order."""
    groups: dict[object, list[FastPath]] = {}
    for index, path in enumerate(paths):
        unmeasured = not path.used and path.speedup is None and path.error is None
        reason = performance_texts.fast_path_reason(path, "en") if unmeasured else ""
        groups.setdefault(reason or index, []).append(path)
    found: list[list[FastPath]] = []
    for group in groups.values():
        found += [group] if len(group) >= _MIN_GROUP else [[path] for path in group]
    return found


def _breakable(text: str) -> str:
    """Allow line breaks in long words, such as symbols of a linker."""
    return re.sub(rf"\S{{{_MAX_WORD_LENGTH}}}(?=\S)", lambda word: word[0] + _LINE_BREAK, text)


def _facts(execution: ExecutionInfo) -> str:
    """Return device, precision and compile time."""
    parts = [*map(execution_texts.format_device, execution.devices[:1]), execution.precision]
    if execution.compile_s is not None:
        parts.append(execution_texts.format_compile_time(execution.compile_s))
    return "  ·  ".join(filter(None, parts))


def _note(execution: ExecutionInfo) -> str:
    if not execution.fast_paths:
        return tr("performance.trainer_this_run_did_not")
    if not execution.run_fast_paths:
        return tr("performance.what_this_machine_can_do")
    return ""
