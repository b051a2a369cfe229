"""The log: levels to switch on and off, a text to search for."""

from __future__ import annotations

import time
from typing import Final

from PySide6.QtGui import QColor, QFontDatabase, QShowEvent, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QHBoxLayout, QPlainTextEdit, QVBoxLayout, QWidget

from app.state.log_store import CAPACITY, LEVELS, Level, LogEntry, LogFilter, LogStore
from app.theme.tokens import SPACE, Tokens
from app.views.log_words import sentence
from app.views.widgets import Retranslating, button, empty_note, line, named

_COLOURS: Final[dict[Level, str]] = {
    "info": "text",
    "output": "muted",
    "advice": "accent",
    "warning": "warn",
    "error": "bad",
}


class LogPage(Retranslating):
    """Shows a `LogStore`: appends what is new, starts over when the filter or the language changes."""

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tokens = tokens
        self._store: LogStore | None = None
        self._next = 0  # number of the first entry not looked at yet
        self._version = -1
        self.levels = {level: button(f"level_{level}", checkable=True) for level in LEVELS}
        for switch in self.levels.values():
            switch.setChecked(True)
        self.search = line("searchLog", clear=True)
        self.text = named(QPlainTextEdit(), "log")
        self.text.setReadOnly(True)
        self.text.setMaximumBlockCount(CAPACITY)
        self.text.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
        self._empty = empty_note(self.text)
        self._arrange()
        for switch in self.levels.values():
            switch.toggled.connect(self.start_over)
        self.search.textChanged.connect(self.start_over)
        self.retranslate()

    def _arrange(self) -> None:
        bar = QHBoxLayout()
        bar.setSpacing(SPACE // 2)
        for switch in self.levels.values():
            bar.addWidget(switch)
        bar.addSpacing(SPACE)
        bar.addWidget(self.search, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE, 0, 0)
        layout.setSpacing(SPACE)
        layout.addLayout(bar)
        layout.addWidget(self.text, 1)

    def display(self, store: LogStore) -> None:
        """Append what came since; cheap when nothing did."""
        if store is not self._store:
            self._store, self._next, self._version = store, 0, -1
            self.text.clear()
        if not self.isVisible() or store.version == self._version:
            return
        if not len(store):
            self.text.clear()
        self._version = store.version
        wanted = self._filter()
        for entry in store.since(self._next):
            self._next = entry.number + 1
            text = sentence(entry)
            if wanted.keeps(entry, text):
                self._append(entry, text)
        self._show_empty()

    def start_over(self) -> None:
        self.text.clear()
        self._next, self._version = 0, -1
        if self._store is not None:
            self.display(self._store)

    def _filter(self) -> LogFilter:
        chosen = frozenset(level for level, switch in self.levels.items() if switch.isChecked())
        return LogFilter(chosen, self.search.text().strip())

    def _append(self, entry: LogEntry, text: str) -> None:
        bar = self.text.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - 2  # who has scrolled up is reading: leave the view there
        look = QTextCharFormat()
        look.setForeground(QColor(getattr(self._tokens, _COLOURS[entry.level])))
        cursor = QTextCursor(self.text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        if not self.text.document().isEmpty():
            cursor.insertBlock()
        cursor.insertText(f"{time.strftime('%H:%M:%S', time.localtime(entry.time))}  {text}", look)
        if at_end:
            bar.setValue(bar.maximum())

    def _show_empty(self) -> None:
        nothing = self.text.document().isEmpty()
        self._empty.setVisible(nothing)
        filtered = self._store is not None and len(self._store) > 0
        self._empty.setText(
            self.tr("Nothing matches the filter.") if filtered else self.tr("Nothing has happened yet.")
        )

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.start_over()

    def retranslate(self) -> None:
        titles: dict[Level, str] = {
            "info": self.tr("Events"),
            "warning": self.tr("Warnings"),
            "error": self.tr("Errors"),
            "advice": self.tr("Advice"),
            "output": self.tr("Output"),
        }
        for level, switch in self.levels.items():
            switch.setText(titles[level])
        self.search.setPlaceholderText(self.tr("Search the log"))
        self.search.setAccessibleName(self.tr("Search the log"))
        self.text.setAccessibleName(self.tr("Log"))
        self.start_over()
        self._show_empty()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        if self._store is not None:
            self.display(self._store)
