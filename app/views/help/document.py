"""A document of Traindeck's own (guide, licence) in a window: Markdown needs no other program to read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QImage, QTextDocument
from PySide6.QtWidgets import QDialog, QTextBrowser, QVBoxLayout, QWidget

from app.theme.tokens import SPACE
from app.views.widgets import named

_MARGIN = 3 * SPACE


class Pages(QTextBrowser):
    """Pictures are no wider than the text; links to the web open in the browser, those to folders in the files."""

    def __init__(self) -> None:
        super().__init__()
        self.setOpenLinks(False)
        self.anchorClicked.connect(self._follow)

    def loadResource(self, kind: int, name: QUrl | str) -> Any:  # noqa: N802 - Qt's name
        if kind != QTextDocument.ResourceType.ImageResource.value:
            return super().loadResource(kind, name)
        path = Path(self.source().toLocalFile()).parent / QUrl(name).toString()
        image = QImage(str(path))
        ratio = self.devicePixelRatioF()
        widest = round((self.viewport().width() - 2 * _MARGIN) * ratio)
        if not image.isNull() and image.width() > widest > 0:
            image = image.scaledToWidth(widest, Qt.TransformationMode.SmoothTransformation)
            image.setDevicePixelRatio(ratio)
        return image

    def _follow(self, link: QUrl) -> None:
        target = self.source().resolved(link)
        path = target.toLocalFile()
        if target.isLocalFile() and path.endswith((".md", "LICENSE")):
            self.setSource(target)
        else:
            QDesktopServices.openUrl(target)


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
        self.resize(860, 720)
        markdown = path.suffix == ".md"
        kind = QTextDocument.ResourceType.MarkdownResource if markdown else QTextDocument.ResourceType.UnknownResource
        self.text.setSource(QUrl.fromLocalFile(str(path)), kind)
