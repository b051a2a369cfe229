"""Details of the selected run: facts, note and tags to edit, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QGridLayout, QPlainTextEdit, QSizePolicy, QStackedLayout, QWidget

from app.core.history.run_list import RunRow
from app.core.history.run_notes import parse_tags
from app.pages.runs.checkpoints import CheckpointList
from app.pages.runs.table import RUN_COLUMNS
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    TranslatableWidget,
    label,
    line_edit,
    scroll_area,
    set_object_name,
    vertical_layout,
)

_SAVE_DELAY_MS: Final = 800  # after the last key press
_SIDE_BY_SIDE_WIDTH: Final = 680  # from here on, the checkpoints are beside the facts
_FACTS: Final[dict[str, tuple[str, Callable[[RunRow], str]]]] = {
    **{
        name: (RUN_COLUMNS[name].title, RUN_COLUMNS[name].text)
        for name in ("state", "started", "step", "time", "loss", "speed")
    },
    "size": ("runs.size_on_disk", lambda row: ""),  # measured
    "last": ("runs.last_loss", lambda row: formatting.format_loss(row.run.last_loss)),
    "data": ("common.data", lambda row: formatting.join_items(map(formatting.format_data_source, row.run.data)) or "–"),
}
"""Title and text of each fact."""


class RunDetails(TranslatableWidget):
    """Details of the selected run. Edits are saved after a pause in typing, and before another run is shown."""

    notes_edited = Signal(Path, str, tuple)  # a run, its note, its tags

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._rows: list[RunRow] = []
        self._edited_run: Path | None = None
        self._saved_notes: tuple[str, tuple[str, ...]] = ("", ())
        self._size_text = "…"
        self.title = set_object_name(ElidedLabel(Qt.TextElideMode.ElideMiddle), "section")
        self.facts = {name: (label("muted"), ElidedLabel()) for name in _FACTS}
        self.hint = label("muted", wrap=True, centred=True)  # unless exactly one run is selected
        self.error = label("error", wrap=True, hidden=True)
        self.note, self.tags = set_object_name(QPlainTextEdit(), "runNote"), line_edit("runTags")
        self._note_label, self._tags_label = label("muted"), label("muted")
        self.checkpoints = CheckpointList()
        self._save_timer = QTimer(self, singleShot=True, interval=_SAVE_DELAY_MS)
        self._save_timer.timeout.connect(self.save)
        self._arrange()
        self.note.textChanged.connect(self._save_timer.start)
        self.tags.textEdited.connect(self._save_timer.start)
        self.retranslate()
        self.display([], can_resume=False)

    def _arrange(self) -> None:
        facts = QGridLayout()
        facts.setHorizontalSpacing(SPACING)
        facts.setVerticalSpacing(SPACING // 2)
        for place, (title, value) in enumerate(self.facts.values()):
            row, column = divmod(place, 2)
            facts.addWidget(title, row, 2 * column)
            facts.addWidget(value, row, 2 * column + 1, 1, 3 if place == len(_FACTS) - 1 else 1)
        for column in (1, 3):
            facts.setColumnStretch(column, 1)
        notes = QGridLayout()
        notes.setSpacing(SPACING)
        notes.addWidget(self._tags_label, 0, 0)
        notes.addWidget(self.tags, 0, 1)
        notes.addWidget(self._note_label, 1, 0, Qt.AlignmentFlag.AlignTop)
        notes.addWidget(self.note, 1, 1)
        self.note.setTabChangesFocus(True)
        self.note.setMinimumHeight(2 * self.note.fontMetrics().lineSpacing() + SPACING)
        self.note.setSizePolicy(self.note.sizePolicy().horizontalPolicy(), QSizePolicy.Policy.Ignored)
        left = vertical_layout()
        left.addLayout(facts)
        left.addWidget(self.error)
        left.addLayout(notes, 1)
        content = set_object_name(QWidget(), "scrolled")
        self._columns = QBoxLayout(QBoxLayout.Direction.LeftToRight, content)
        self._columns.setContentsMargins(0, 0, 0, 0)
        self._columns.setSpacing(2 * SPACING)
        self._columns.addLayout(left, 1)
        self._columns.addWidget(self.checkpoints, 1)
        self._stack = QStackedLayout()  # keeps its size whatever is selected
        self._stack.addWidget(scroll_area(content))
        self._stack.addWidget(self.hint)
        layout = vertical_layout()
        layout.addWidget(self.title)
        layout.addLayout(self._stack, 1)
        self.setLayout(layout)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        wide = event.size().width() >= _SIDE_BY_SIDE_WIDTH
        self._columns.setDirection(QBoxLayout.Direction.LeftToRight if wide else QBoxLayout.Direction.TopToBottom)

    def display(self, rows: list[RunRow], *, can_resume: bool) -> None:
        """Show the selected runs: the details of one, or the number of several."""
        if [row.path for row in rows] != [row.path for row in self._rows]:
            self._size_text = "…"
        self._rows = rows
        row = rows[0] if len(rows) == 1 else None
        path = row.path if row is not None else None
        if path != self._edited_run:
            self.save()
            self._edited_run = path
            self._saved_notes = (row.notes.note, row.notes.tags) if row is not None else ("", ())
            self.note.setPlainText(self._saved_notes[0])
            self.tags.setText(", ".join(self._saved_notes[1]))
            self._save_timer.stop()
        self._stack.setCurrentIndex(0 if row is not None else 1)
        self.checkpoints.display(row.run if row is not None else None, can_resume=can_resume)
        self._show_facts()

    def show_size(self, size: int) -> None:
        """Show the bytes on disk of the selected runs."""
        self._size_text = formatting.format_file_size(size)
        self._show_facts()

    def save(self) -> None:
        """Emit the edits that are not saved yet."""
        self._save_timer.stop()
        notes = self.note.toPlainText(), parse_tags(self.tags.text())
        if self._edited_run is not None and notes != self._saved_notes:
            self._saved_notes = notes
            self.notes_edited.emit(self._edited_run, *notes)

    def _show_facts(self) -> None:
        count = len(self._rows)
        if count != 1:
            self.title.setText(tr("runs.selection", count=count, size=self._size_text) if count else "")
            self.hint.setText(tr("runs.selection_hint") if count else tr("runs.details_hint"))
            return
        row, run = self._rows[0], self._rows[0].run
        self.title.setText(run.name)
        for name, (_, format_fact) in _FACTS.items():
            self.facts[name][1].setText(self._size_text if name == "size" else format_fact(row))
        error = run.error if run.state == "failed" else None
        self.error.setText(formatting.localized_message(*error) if error else "")
        self.error.setVisible(error is not None)

    def retranslate(self) -> None:
        for name, (title, _) in _FACTS.items():
            self.facts[name][0].setText(tr(title))
        self._tags_label.setText(tr("runs.tags"))
        self._note_label.setText(tr("runs.note"))
        self.tags.setAccessibleName(tr("runs.tags"))
        self.tags.setPlaceholderText(tr("runs.tags_hint"))
        self.note.setAccessibleName(tr("runs.note"))
        self.note.setPlaceholderText(tr("runs.note_hint"))
        self._show_facts()
