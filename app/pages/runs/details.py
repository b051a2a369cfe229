"""Details of the selected run: facts, note and tags to edit, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import QEvent, QObject, QSignalBlocker, QStringListModel, Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QCompleter,
    QGridLayout,
    QLineEdit,
    QPlainTextEdit,
    QSizePolicy,
    QStackedLayout,
    QVBoxLayout,
    QWidget,
)

from app.core.history.run_notes import TAG_SEPARATORS, parse_tags
from app.core.history.run_rows import RunRow
from app.pages.runs.checkpoints import CheckpointList
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import ElidedLabel, TranslatableWidget, label, scroll_area, set_object_name, vertical_layout

_SAVE_DELAY_MS: Final = 800  # after the last key press
_SIDE_BY_SIDE_WIDTH: Final = 680  # from here on, the checkpoints are beside the facts
_FACTS: Final = ("state", "started", "step", "time", "loss", "speed", "size", "last", "data")


class RunDetails(TranslatableWidget):
    """Details of the selected run. Edits are saved after a pause in typing, and before another run is shown."""

    note_changed = Signal(Path, str)
    tags_changed = Signal(Path, tuple)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._row: RunRow | None = None
        self._selected_count = 0
        self._size_text = "…"
        self.title = set_object_name(ElidedLabel(Qt.TextElideMode.ElideMiddle), "section")
        self.facts = {name: (label("muted"), ElidedLabel()) for name in _FACTS}
        self.hint = label("muted", wrap=True, centred=True)  # unless exactly one run is selected
        self.error = label("error", wrap=True, hidden=True)
        self.note, self.tags = set_object_name(QPlainTextEdit(), "runNote"), _TagsEdit()
        self._note_label, self._tags_label = label("muted"), label("muted")
        self.checkpoints = CheckpointList()
        self._save_timer = QTimer(self, singleShot=True, interval=_SAVE_DELAY_MS)
        self._save_timer.timeout.connect(self.save)
        self._arrange()
        self.note.textChanged.connect(self._save_timer.start)
        self.tags.textEdited.connect(self._save_timer.start)
        self.tags.editingFinished.connect(self.save)
        self.note.installEventFilter(self)
        self.retranslate()
        self.display(None, 0)

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
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACING)
        layout.addWidget(self.title)
        layout.addLayout(self._stack, 1)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        wide = event.size().width() >= _SIDE_BY_SIDE_WIDTH
        self._columns.setDirection(QBoxLayout.Direction.LeftToRight if wide else QBoxLayout.Direction.TopToBottom)

    def display(self, row: RunRow | None, selected_count: int) -> None:
        """Show a run; None: `selected_count` runs are selected, not exactly one."""
        is_same = row is not None and self._row is not None and row.path == self._row.path
        if not is_same:
            self.save()
            self._size_text = "…"
        self._row, self._selected_count = row, selected_count
        self._stack.setCurrentIndex(0 if row is not None else 1)
        self.checkpoints.display(row)
        if row is not None and not (is_same and self._save_timer.isActive()):
            if not (is_same and self.note.hasFocus()) and self.note.toPlainText() != row.notes.note:
                with QSignalBlocker(self.note):
                    self.note.setPlainText(row.notes.note)
            if not (is_same and self.tags.hasFocus()):
                self.tags.setText(", ".join(row.notes.tags))
        self._show_facts()

    def show_size(self, size: int, *, complete: bool) -> None:
        """Show the bytes on disk of the selected runs, as far as they are counted."""
        self._size_text = formatting.format_file_size(size) + ("" if complete else " …")
        self._show_facts()

    def save(self) -> None:
        """Emit the edits that are not saved yet."""
        self._save_timer.stop()
        row = self._row
        if row is None:
            return
        note, tags = self.note.toPlainText(), parse_tags(self.tags.text())
        if note != row.notes.note:
            self.note_changed.emit(row.path, note)
        if tags != row.notes.tags:
            self.tags_changed.emit(row.path, tags)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 - Qt's name
        if watched is self.note and event.type() == QEvent.Type.FocusOut:
            self.save()
        return super().eventFilter(watched, event)

    def _show_facts(self) -> None:
        if self._row is None:
            count = self._selected_count
            several = tr("runs.count_runs_selected_size_on", count=count, size=self._size_text)
            self.title.setText(several if count else "")
            hint = "runs.compare_shows_where_their_settings" if count else "runs.select_run_see_details_checkpoints"
            self.hint.setText(tr(hint))
            return
        run = self._row.run
        self.title.setText(run.name)
        values = {
            "state": formatting.format_stored_run_state(run.state),
            "started": formatting.format_timestamp(run.started),
            "step": formatting.format_progress(run.step, run.total_steps or None, "steps"),
            "time": formatting.format_duration(run.seconds or None),
            "loss": formatting.format_loss(run.best_loss),
            "last": formatting.format_loss(run.last_loss),
            "speed": formatting.format_rate(run.tokens_per_s),
            "size": self._size_text,
            "data": ", ".join(map(formatting.format_data_source, run.data)) or "–",
        }
        for name, text in values.items():
            self.facts[name][1].setText(text)
        error = run.error if run.state == "failed" else None
        self.error.setText(formatting.localized_message(*error) if error else "")
        self.error.setVisible(error is not None)

    def retranslate(self) -> None:
        titles = {
            "state": tr("runs.state"),
            "started": tr("runs.started"),
            "step": tr("common.progress"),
            "time": tr("runs.trained_for"),
            "loss": tr("runs.best_loss"),
            "last": tr("runs.last_loss"),
            "speed": tr("runs.tokens_s"),
            "size": tr("runs.on_disk"),
            "data": tr("common.data"),
        }
        for name, text in titles.items():
            self.facts[name][0].setText(text)
        self._tags_label.setText(tr("runs.tags"))
        self._note_label.setText(tr("runs.note"))
        self.tags.setAccessibleName(tr("runs.tags"))
        self.tags.setPlaceholderText(tr("runs.divided_by_commas"))
        self.note.setAccessibleName(tr("runs.note"))
        self.note.setPlaceholderText(tr("runs.what_you_want_remember_this"))
        self._show_facts()


class _TagsEdit(QLineEdit):
    """Tags separated by commas. Completes the tag at the cursor from the tags in use."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("runTags")
        self._known_tags = QStringListModel(self)
        self._completer = QCompleter(self._known_tags, self)
        self._completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self._completer.setWidget(self)
        self._completer.activated.connect(self._insert_completion)
        self.textEdited.connect(self._complete)

    def set_known_tags(self, tags: list[str]) -> None:
        if tags != self._known_tags.stringList():
            self._known_tags.setStringList(tags)

    def _tag_at_cursor(self) -> tuple[int, int]:
        """Start and end of the tag at the cursor."""
        text, cursor = self.text(), self.cursorPosition()
        start = max(text.rfind(separator, 0, cursor) for separator in TAG_SEPARATORS) + 1
        ends = (text.find(separator, cursor) for separator in TAG_SEPARATORS)
        return start, min((end for end in ends if end >= 0), default=len(text))

    def _complete(self) -> None:
        prefix = self.text()[slice(*self._tag_at_cursor())].strip()
        self._completer.setCompletionPrefix(prefix)
        if prefix and self._completer.currentCompletion() not in ("", prefix):
            self._completer.complete()
        elif (popup := self._completer.popup()) is not None:
            popup.hide()

    def _insert_completion(self, tag: str) -> None:
        start, end = self._tag_at_cursor()
        text = self.text()
        before = text[:start] + (" " if start else "") + tag
        self.setText(before + text[end:])
        self.setCursorPosition(len(before))
        self.textEdited.emit(self.text())
