"""A document of Traindeck's own (guide, licence) in a window: Markdown needs no other program to read it."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSize, Qt, QTimer, QUrl
from PySide6.QtGui import QDesktopServices, QImage, QImageReader, QTextDocument
from PySide6.QtWidgets import QDialog, QTextBrowser, QVBoxLayout, QWidget

from app.theme.tokens import SPACE
from app.views.widgets import named, resize_within_screen

_MARGIN = 3 * SPACE
_LOOK_MS = 30


class Pages(QTextBrowser):
    """Pictures are no wider than the text, and come when they are read; links to the web open in the browser."""

    def __init__(self) -> None:
        super().__init__()
        self.setOpenLinks(False)
        self.anchorClicked.connect(self._follow)
        self._read: queue.SimpleQueue[tuple[QUrl, QImage]] = queue.SimpleQueue()
        self._missing = 0  # pictures that are being read
        self._timer = QTimer(self, interval=_LOOK_MS)
        self._timer.timeout.connect(self._take)

    def loadResource(self, kind: int, name: QUrl | str) -> Any:  # noqa: N802 - Qt's name
        if kind != QTextDocument.ResourceType.ImageResource.value:
            return super().loadResource(kind, name)
        whole = self.source().resolved(QUrl(name))
        ratio = self.devicePixelRatioF()
        widest = round((self.window().width() - 3 * _MARGIN) * ratio)  # the view itself may not be laid out yet
        size = QImageReader(whole.toLocalFile()).size()
        if not size.isValid():
            return None
        if size.width() > widest:
            size = size.scaled(widest, size.height(), Qt.AspectRatioMode.KeepAspectRatio)
        room = QImage(size, QImage.Format.Format_ARGB32_Premultiplied)
        room.setDevicePixelRatio(ratio)
        room.fill(Qt.GlobalColor.transparent)
        # A screenshot takes a tenth of a second to read and to scale.
        threading.Thread(target=_load, args=(whole, size, ratio, self._read), daemon=True).start()
        self._missing += 1
        self._timer.start()
        return room

    def _take(self) -> None:
        while not self._read.empty():
            name, image = self._read.get()
            self._missing -= 1
            self.document().addResource(QTextDocument.ResourceType.ImageResource.value, name, image)
            self.viewport().update()
        if not self._missing:
            self._timer.stop()

    def _follow(self, link: QUrl) -> None:
        target = self.source().resolved(link)
        path = target.toLocalFile()
        if target.isLocalFile() and path.endswith((".md", "LICENSE")):
            self.setSource(target)
        else:
            QDesktopServices.openUrl(target)


def _load(name: QUrl, size: QSize, ratio: float, done: queue.SimpleQueue[tuple[QUrl, QImage]]) -> None:
    image = QImage(name.toLocalFile())
    image = image.scaled(size, Qt.AspectRatioMode.IgnoreAspectRatio, Qt.TransformationMode.SmoothTransformation)
    image.setDevicePixelRatio(ratio)
    done.put((name, image))


class Document(QDialog):
    """Stays open beside the window."""

    def __init__(self, path: Path, title: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setObjectName("document")
        self.setWindowTitle(title)
        self.text = named(Pages(), "documentText")
        self.text.setAccessibleName(title)
        self.text.document().setDocumentMargin(_MARGIN)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.text)
        resize_within_screen(self, QSize(860, 720))
        markdown = path.suffix == ".md"
        kind = QTextDocument.ResourceType.MarkdownResource if markdown else QTextDocument.ResourceType.UnknownResource
        self.text.setSource(QUrl.fromLocalFile(str(path)), kind)
