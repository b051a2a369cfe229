"""What there is to know of one run, with its note and tags to edit, and its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import QEvent, QObject, QStringListModel, Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QBoxLayout,
    QCompleter,
    QGridLayout,
    QLineEdit,
    QListView,
    QPlainTextEdit,
    QStackedLayout,
    QVBoxLayout,
    QWidget,
)

from app.state.runs.run_notes import parse_tags
from app.state.runs.run_rows import Row
from app.theme.tokens import SPACE, Tokens
from app.views import words
from app.views.runs.checkpoints import Checkpoints
from app.views.widgets import ElidedLabel, Retranslating, label, named, scroll_area

_PAUSE_MS: Final = 800  # without typing, until what was typed is kept
_SIDE_BY_SIDE: Final = 680  # width from which the checkpoints stand beside the facts
_FACTS: Final = ("state", "started", "step", "time", "loss", "speed", "size", "last", "data")


class Details(Retranslating):
    """Of the selected run; what is typed is kept when typing pauses, and before another run is shown."""

    note_changed = Signal(Path, str)
    tags_changed = Signal(Path, tuple)

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._row: Row | None = None
        self._count = 0
        self._size: tuple[int, bool] | None = None  # bytes, all of them
        self._can_resume, self._exporting = True, False
        self.title = named(ElidedLabel(Qt.TextElideMode.ElideMiddle), "section")
        self.facts = {name: (label("muted"), ElidedLabel()) for name in _FACTS}
        self.hint = label("muted", wrap=True, centred=True)  # where not one run is chosen
        self.error = label("error", wrap=True, hidden=True)
        self.note, self.tags = named(QPlainTextEdit(), "runNote"), _TagsLine()
        self._note_title, self._tags_title = label("muted"), label("muted")
        self.checkpoints = Checkpoints()
        self._pause = QTimer(self, singleShot=True, interval=_PAUSE_MS)
        self._pause.timeout.connect(self.keep)
        self._filling = False
        self._arrange()
        self.note.textChanged.connect(self._on_typed)
        self.tags.textEdited.connect(self._on_typed)
        self.tags.editingFinished.connect(self.keep)
        self.note.installEventFilter(self)
        self.retranslate()
        self.display(None, 0)

    def _arrange(self) -> None:
        grid = QGridLayout()
        grid.setHorizontalSpacing(SPACE)
        grid.setVerticalSpacing(SPACE // 2)
        for place, name in enumerate(_FACTS):
            title, value = self.facts[name]
            row, column = divmod(place, 2)
            grid.addWidget(title, row, 2 * column)
            whole_line = place == len(_FACTS) - 1
            grid.addWidget(value, row, 2 * column + 1, 1, 3 if whole_line else 1)
        for column in (1, 3):
            grid.setColumnStretch(column, 1)
        self._below = QWidget()
        typed = QGridLayout(self._below)
        typed.setContentsMargins(0, 0, 0, 0)
        typed.setSpacing(SPACE)
        typed.addWidget(self._tags_title, 0, 0)
        typed.addWidget(self.tags, 0, 1)
        typed.addWidget(self._note_title, 1, 0, Qt.AlignmentFlag.AlignTop)
        typed.addWidget(self.note, 1, 1)
        self.note.setTabChangesFocus(True)
        self.note.setMinimumHeight(2 * self.note.fontMetrics().lineSpacing() + SPACE)
        self.note.setSizePolicy(self.note.sizePolicy().horizontalPolicy(), self.tags.sizePolicy().Policy.Ignored)
        self._facts = QWidget()
        left = QVBoxLayout(self._facts)
        left.setContentsMargins(0, 0, 0, 0)
        left.setSpacing(SPACE)
        left.addLayout(grid)
        left.addWidget(self.error)
        left.addWidget(self._below, 1)
        content = named(QWidget(), "scrolled")
        self._beside = QBoxLayout(QBoxLayout.Direction.LeftToRight, content)
        self._beside.setContentsMargins(0, 0, 0, 0)
        self._beside.setSpacing(2 * SPACE)
        self._beside.addWidget(self._facts, 1)
        self._beside.addWidget(self.checkpoints, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE)
        layout.addWidget(self.title)
        self._area = scroll_area(content)
        self._body = QStackedLayout()  # the room stays the same whatever is chosen
        self._body.addWidget(self._area)
        self._body.addWidget(self.hint)
        layout.addLayout(self._body, 1)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        wide = event.size().width() >= _SIDE_BY_SIDE
        self._beside.setDirection(QBoxLayout.Direction.LeftToRight if wide else QBoxLayout.Direction.TopToBottom)

    # --- showing ----------------------------------------------------------------------------------------

    def display(self, row: Row | None, count: int) -> None:
        """Show a run; None: none or several (`count`) are selected."""
        another = (row.path if row else None) != (self._row.path if self._row else None)
        if another:
            self.keep()
            self._size = None
        self._row, self._count = row, count
        self._body.setCurrentIndex(0 if row is not None else 1)
        self.checkpoints.display(row)
        if row is not None:
            self._fill(row, another=another)
        self._say_facts()

    def show_size(self, size: int, *, complete: bool) -> None:
        """Bytes on disk of what is selected, as far as they are counted."""
        self._size = (size, complete)
        self._say_facts()

    def allow(self, *, can_resume: bool | None = None, exporting: bool | None = None) -> None:
        """Whether this window trains nothing just now, and whether a checkpoint is being exported."""
        self._can_resume = self._can_resume if can_resume is None else can_resume
        self._exporting = self._exporting if exporting is None else exporting
        self.checkpoints.allow(can_resume=self._can_resume, exporting=self._exporting)

    def know_tags(self, tags: list[str]) -> None:
        """What is offered while tags are typed."""
        self.tags.offer(tags)

    def retheme(self, tokens: Tokens) -> None:
        pass  # the style sheet does it all

    def _fill(self, row: Row, *, another: bool) -> None:
        """The fields; never what is being typed."""
        self._filling = True
        typing = self._pause.isActive() and not another
        if not (typing or (self.note.hasFocus() and not another)) and self.note.toPlainText() != row.notes.note:
            self.note.setPlainText(row.notes.note)
        if not (typing or (self.tags.hasFocus() and not another)):
            self.tags.setText(", ".join(row.notes.tags))
        self._filling = False

    # --- what is typed ----------------------------------------------------------------------------------

    def _on_typed(self) -> None:
        if not self._filling:
            self._pause.start()

    def keep(self) -> None:
        """Give out what was typed and is not kept yet."""
        self._pause.stop()
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
            self.keep()
        return super().eventFilter(watched, event)

    # --- words ------------------------------------------------------------------------------------------

    def _say_facts(self) -> None:
        row = self._row
        size = "…" if self._size is None else words.small_size(self._size[0]) + ("" if self._size[1] else " …")
        if row is None:
            several = self.tr("{count} runs selected, {size} on disk").format(count=self._count, size=size)
            self.title.setText(several if self._count else "")
            self.hint.setText(
                self.tr("“Compare” shows where their settings differ, “Show in plots” lays them over one another.")
                if self._count
                else self.tr("Select a run to see its details, its checkpoints, and what was noted of it.")
            )
            return
        run = row.run
        self.title.setText(run.name)
        values = {
            "state": words.disk_state(run.state),
            "started": words.when(run.started),
            "step": words.amount(run.step, run.total_steps or None, "steps"),
            "time": words.duration(run.seconds or None),
            "loss": words.loss(run.best_loss),
            "last": words.loss(run.last_loss),
            "speed": words.rate(run.tokens_per_s),
            "size": size,
            "data": ", ".join(map(words.data_name, run.data)) or "–",
        }
        for name, text in values.items():
            self.facts[name][1].setText(text)
        failed = run.error is not None and run.state == "failed"
        self.error.setText(words.message(*run.error) if failed and run.error is not None else "")
        self.error.setVisible(failed)

    def retranslate(self) -> None:
        titles = {
            "state": self.tr("State"),
            "started": self.tr("Started"),
            "step": self.tr("Progress"),
            "time": self.tr("Trained for"),
            "loss": self.tr("Best loss"),
            "last": self.tr("Last loss"),
            "speed": self.tr("Tokens/s"),
            "size": self.tr("On disk"),
            "data": self.tr("Data"),
        }
        for name, text in titles.items():
            self.facts[name][0].setText(text)
        self._tags_title.setText(self.tr("Tags"))
        self._note_title.setText(self.tr("Note"))
        self.tags.setAccessibleName(self.tr("Tags"))
        self.tags.setPlaceholderText(self.tr("divided by commas"))
        self.note.setAccessibleName(self.tr("Note"))
        self.note.setPlaceholderText(self.tr("What you want to remember of this run"))
        self._say_facts()


class _TagsLine(QLineEdit):
    """Tags, divided by commas; the one at the cursor is completed from those in use."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("runTags")
        self._known = QStringListModel(self)
        self._completer = QCompleter(self._known, self)
        self._completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self._completer.setFilterMode(Qt.MatchFlag.MatchStartsWith)
        self._completer.setWidget(self)
        self._popup: QAbstractItemView = self._completer.popup() or QListView(self)
        self._completer.activated.connect(self._take)
        self.textEdited.connect(self._suggest)

    def offer(self, tags: list[str]) -> None:
        if tags != self._known.stringList():
            self._known.setStringList(tags)

    def _bounds(self) -> tuple[int, int]:
        """The tag at the cursor: its first place, and the one behind it."""
        text, cursor = self.text(), self.cursorPosition()
        marks = [place for place, letter in enumerate(text) if letter in ",，、;；"]
        start = max((place + 1 for place in marks if place < cursor), default=0)
        return start, min((place for place in marks if place >= cursor), default=len(text))

    def _suggest(self) -> None:
        start, end = self._bounds()
        typed = self.text()[start:end].strip()
        if not typed:
            self._popup.hide()
            return
        self._completer.setCompletionPrefix(typed)
        offered = self._completer.currentCompletion()
        if offered and offered != typed:
            self._completer.complete()
        else:
            self._popup.hide()

    def _take(self, tag: str) -> None:
        start, end = self._bounds()
        text = self.text()
        before = text[:start] + (" " if start else "")
        self.setText(before + tag + text[end:])
        self.setCursorPosition(len(before) + len(tag))
        self.textEdited.emit(self.text())
