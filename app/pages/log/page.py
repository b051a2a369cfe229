"""Log page, with filters by level and text."""

from __future__ import annotations

import time
from typing import Final

from PySide6.QtGui import QFontDatabase, QShowEvent
from PySide6.QtWidgets import QPlainTextEdit

from app.core.log_store import DEFAULT_CAPACITY, LEVELS, Level, LogStore
from app.pages.log.entry_texts import format_entry
from app.pages.page import Page, ShownRun
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    horizontal_layout,
    line_edit,
    placeholder_label,
    push_button,
    set_object_name,
    vertical_layout,
)
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
        self.level_buttons = {level: push_button(f"level_{level}", checkable=True) for level in LEVELS}
        for button in self.level_buttons.values():
            button.setChecked(True)
            button.toggled.connect(self._rebuild)
        self.search = line_edit("searchLog", clear=True)
        self.text = set_object_name(QPlainTextEdit(), "log")
        self.text.setReadOnly(True)
        self.text.setMaximumBlockCount(DEFAULT_CAPACITY)
        self.text.setFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
        self._placeholder = placeholder_label(self.text)
        self._build_layout()
        self.search.textChanged.connect(self._rebuild)
        self.retranslate()

    def _build_layout(self) -> None:
        bar = horizontal_layout(*self.level_buttons.values(), (self.search, 1), spacing=SPACING // 2)
        bar.insertSpacing(len(self.level_buttons), SPACING)
        layout = vertical_layout()
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.addLayout(bar)
        layout.addWidget(self.text, 1)
        self.setLayout(layout)

    def show_run(self, run: ShownRun) -> None:
        if run.record.log is not self._store:
            self._store = run.record.log
            self._rebuild()
        self._append_new()

    def _append_new(self) -> None:
        store = self._store
        if store is None or not self.isVisible() or store.version == self._next_number:
            return
        levels = {level for level, button in self.level_buttons.items() if button.isChecked()}
        search = self.search.text().strip().casefold()
        for entry in store.since(self._next_number):
            text = format_entry(entry)
            if entry.level in levels and search in text.casefold():
                self.text.setCurrentCharFormat(char_format(getattr(self._palette, _LEVEL_COLORS[entry.level])))
                clock = time.strftime("%H:%M:%S", time.localtime(entry.time))
                self.text.appendPlainText(f"{clock}  {text}")  # scrolls if the end is visible
        self._next_number = store.version
        self._update_placeholder()

    def _rebuild(self) -> None:
        self.text.clear()
        self._next_number = 0
        self._append_new()
        self._update_placeholder()

    def _update_placeholder(self) -> None:
        self._placeholder.setVisible(self.text.document().isEmpty())
        self._placeholder.setText(tr("log.no_matches" if self._next_number else "log.no_events"))

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self._rebuild()

    def retranslate(self) -> None:
        titles: dict[Level, str] = {
            "info": tr("log.events"),
            "warning": tr("log.warnings"),
            "error": tr("log.errors"),
            "advice": tr("log.advice"),
            "output": tr("log.output"),
        }
        for level, button in self.level_buttons.items():
            button.setText(titles[level])
        self.search.setPlaceholderText(tr("log.search_the_log"))
        self.search.setAccessibleName(tr("log.search_the_log"))
        self.text.setAccessibleName(tr("log.log"))
        self._rebuild()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self._append_new()
