"""Log page, with filters by level and text."""

from __future__ import annotations

import time
from typing import Final

from PySide6.QtGui import QFontDatabase, QShowEvent, QTextCursor
from PySide6.QtWidgets import QPlainTextEdit, QVBoxLayout

from app.core.log_store import DEFAULT_CAPACITY, LEVELS, Level, LogEntry, LogFilter, LogStore
from app.pages.log.entry_texts import format_entry
from app.pages.page import Page, ShownRun
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import horizontal_layout, line_edit, placeholder_label, push_button, set_object_name
from app.widgets.raw_text import char_format

_LEVEL_COLORS: Final[dict[Level, str]] = {
    "info": "text",
    "output": "muted",
    "advice": "accent",
    "warning": "warn",
    "error": "bad",
}


class LogPage(Page):
    """Displays a `LogStore`: appends new entries, and rebuilds after a change of filter, language or theme."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self._store: LogStore | None = None
        self._next_number = 0  # of the first entry that is not displayed
        self._version = -1
        self.level_buttons = {level: push_button(f"level_{level}", checkable=True) for level in LEVELS}
        for switch in self.level_buttons.values():
            switch.setChecked(True)
        self.search = line_edit("searchLog", clear=True)
        self.text = set_object_name(QPlainTextEdit(), "log")
        self.text.setReadOnly(True)
        self.text.setMaximumBlockCount(DEFAULT_CAPACITY)
        self.text.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
        self._placeholder = placeholder_label(self.text)
        self._build_layout()
        for switch in self.level_buttons.values():
            switch.toggled.connect(self.rebuild)
        self.search.textChanged.connect(self.rebuild)
        self.retranslate()

    def _build_layout(self) -> None:
        bar = horizontal_layout(*self.level_buttons.values(), (self.search, 1), spacing=SPACING // 2)
        bar.insertSpacing(len(self.level_buttons), SPACING)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.setSpacing(SPACING)
        layout.addLayout(bar)
        layout.addWidget(self.text, 1)

    def show_run(self, run: ShownRun) -> None:
        store = run.record.log
        if store is not self._store:
            self._store, self._next_number, self._version = store, 0, -1
            self.text.clear()
        self._append_new()

    def _append_new(self) -> None:
        store = self._store
        if store is None or not self.isVisible() or store.version == self._version:
            return
        if not len(store):
            self.text.clear()
        self._version = store.version
        wanted = self._filter()
        for entry in store.since(self._next_number):
            self._next_number = entry.number + 1
            text = format_entry(entry)
            if wanted.matches(entry, text):
                self._append(entry, text)
        self._update_placeholder()

    def rebuild(self) -> None:
        self.text.clear()
        self._next_number, self._version = 0, -1
        self._append_new()

    def _filter(self) -> LogFilter:
        chosen = frozenset(level for level, switch in self.level_buttons.items() if switch.isChecked())
        return LogFilter(chosen, self.search.text().strip())

    def _append(self, entry: LogEntry, text: str) -> None:
        bar = self.text.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - 2  # otherwise keep the scroll position
        color = getattr(self._palette, _LEVEL_COLORS[entry.level])
        cursor = QTextCursor(self.text.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        if not self.text.document().isEmpty():
            cursor.insertBlock()
        cursor.insertText(f"{time.strftime('%H:%M:%S', time.localtime(entry.time))}  {text}", char_format(color))
        if at_end:
            bar.setValue(bar.maximum())

    def _update_placeholder(self) -> None:
        nothing = self.text.document().isEmpty()
        self._placeholder.setVisible(nothing)
        filtered = self._store is not None and len(self._store) > 0
        self._placeholder.setText(
            tr("log.nothing_matches_the_filter") if filtered else tr("log.nothing_has_happened_yet")
        )

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self.rebuild()

    def retranslate(self) -> None:
        titles: dict[Level, str] = {
            "info": tr("log.events"),
            "warning": tr("log.warnings"),
            "error": tr("log.errors"),
            "advice": tr("log.advice"),
            "output": tr("log.output"),
        }
        for level, switch in self.level_buttons.items():
            switch.setText(titles[level])
        self.search.setPlaceholderText(tr("log.search_the_log"))
        self.search.setAccessibleName(tr("log.search_the_log"))
        self.text.setAccessibleName(tr("log.log"))
        self.rebuild()
        self._update_placeholder()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self._append_new()
