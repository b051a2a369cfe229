"""All keyboard shortcuts, read from the actions themselves: what is not there does not exist."""

from __future__ import annotations

import html
from collections.abc import Iterable

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QAction, QKeySequence
from PySide6.QtWidgets import QDialog, QTextBrowser, QVBoxLayout, QWidget

from app.theme.tokens import SPACE
from app.views.widgets import named, resize_within_screen


class Shortcuts(QDialog):
    """A table by menu. It stays open beside the window."""

    def __init__(self, listed: Iterable[tuple[str, QAction]], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setObjectName("shortcuts")
        title = self.tr("Keyboard shortcuts")
        self.setWindowTitle(title)
        self.text = named(QTextBrowser(), "shortcutsText")
        self.text.setAccessibleName(title)
        self.text.document().setDocumentMargin(2 * SPACE)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.text)
        self.text.setHtml(self._table(listed))
        resize_within_screen(self, QSize(480, 640))

    def _table(self, listed: Iterable[tuple[str, QAction]]) -> str:
        rows, menu = [], ""
        for title, action in listed:
            if not action.shortcuts():
                continue
            if title != menu:
                menu = title
                rows.append(f'<tr><td colspan="2"><p style="margin-top: 10px"><b>{_plain(title)}</b></p></td></tr>')
            rows.append(f"<tr><td>{_plain(action.iconText())}</td><td>{self._keys(action)}</td></tr>")
        everywhere = self.tr("Tab and Shift+Tab reach every field and button; the space bar presses it.")
        table = f'<table width="100%" cellpadding="3">{"".join(rows)}</table>'
        return f"{table}<p>{html.escape(everywhere)}</p>"

    def _keys(self, action: QAction) -> str:
        native = QKeySequence.SequenceFormat.NativeText
        either = self.tr(" or ")
        return either.join(html.escape(keys.toString(native)) for keys in action.shortcuts())


def _plain(text: str) -> str:
    """Without the letter that Alt opens a menu by: `&Run`, `运行(&R)`."""
    name, _, letter = text.partition("(&")
    return html.escape((name if letter else text).replace("&", ""))
