"""Modeless dialogs that display rich text: documents and keyboard shortcuts."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize, Qt, QUrl
from PySide6.QtGui import QAction, QDesktopServices, QImage, QImageReader, QKeySequence, QTextDocument
from PySide6.QtWidgets import QDialog, QTextBrowser, QVBoxLayout, QWidget

from app.texts import tr
from app.theme.palette import SPACING
from app.widgets.basic import resize_within_screen, set_object_name

_MARGIN = 3 * SPACING


class TextDialog(QDialog):
    """A read-only text in a window of its own."""

    def __init__(self, name: str, title: str, text: QTextBrowser, size: QSize, parent: QWidget | None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setObjectName(name)
        self.setWindowTitle(title)
        self.text = set_object_name(text, f"{name}Text")
        self.text.setAccessibleName(title)
        self.text.document().setDocumentMargin(_MARGIN)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.text)
        resize_within_screen(self, size)


class _DocumentBrowser(QTextBrowser):
    """Scales images to the width of the text; opens web links in the web browser."""

    def __init__(self) -> None:
        super().__init__()
        self.setOpenLinks(False)
        self.anchorClicked.connect(self._follow)

    def loadResource(self, kind: int, name: QUrl | str) -> Any:  # noqa: N802 - Qt's name
        if kind != QTextDocument.ResourceType.ImageResource.value:
            return super().loadResource(kind, name)
        ratio = self.devicePixelRatioF()
        reader = QImageReader(self.source().resolved(QUrl(name)).toLocalFile())
        size, limit = reader.size(), round((self.window().width() - 3 * _MARGIN) * ratio)
        if size.width() > limit:
            reader.setScaledSize(size.scaled(limit, size.height(), Qt.AspectRatioMode.KeepAspectRatio))
        image: QImage = reader.read()
        image.setDevicePixelRatio(ratio)
        return None if image.isNull() else image

    def _follow(self, link: QUrl) -> None:
        target = self.source().resolved(link)
        if target.isLocalFile() and target.toLocalFile().endswith((".md", "LICENSE")):
            self.setSource(target)
        else:
            QDesktopServices.openUrl(target)


class DocumentDialog(TextDialog):
    """A Markdown or plain text file of Traindeck."""

    def __init__(self, path: Path, title: str, parent: QWidget | None = None) -> None:
        super().__init__("document", title, _DocumentBrowser(), QSize(860, 720), parent)
        kinds = QTextDocument.ResourceType
        kind = kinds.MarkdownResource if path.suffix == ".md" else kinds.UnknownResource
        self.text.setSource(QUrl.fromLocalFile(str(path)), kind)


class Shortcuts(TextDialog):
    """Table of the shortcuts of `actions`, (title of the menu or page, action)."""

    def __init__(self, actions: Iterable[tuple[str, QAction]], parent: QWidget | None = None) -> None:
        super().__init__("shortcuts", tr("help.keyboard_shortcuts"), QTextBrowser(), QSize(480, 640), parent)
        rows, group = [], ""
        for title, action in actions:
            if not action.shortcuts():
                continue
            if title != group:
                group = title
                heading = f'<p style="margin-top: 10px"><b>{_escape(title)}</b></p>'
                rows.append(f'<tr><td colspan="2">{heading}</td></tr>')
            native = (keys.toString(QKeySequence.SequenceFormat.NativeText) for keys in action.shortcuts())
            keys = tr("help.or").join(map(html.escape, native))
            rows.append(f"<tr><td>{_escape(action.iconText())}</td><td>{keys}</td></tr>")
        table = f'<table width="100%" cellpadding="3">{"".join(rows)}</table>'
        plots = f"{tr('window.plots')}: {tr('plots.navigation_hint')}"
        self.text.setHtml(table + "".join(f"<p>{_escape(note)}</p>" for note in (tr("help.keyboard_note"), plots)))


def _escape(text: str) -> str:
    """Escape HTML, and remove mnemonics: `&Run`, `运行(&R)`."""
    name, _, mnemonic = text.partition("(&")
    return html.escape((name if mnemonic else text).replace("&", ""))
