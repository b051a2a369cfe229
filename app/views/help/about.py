"""What this program is: its version, what it runs on, its documents."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QDialog, QGridLayout, QHBoxLayout, QVBoxLayout, QWidget

from app.theme.tokens import SPACE
from app.views.widgets import button, label


class About(QDialog):
    """`versions`: (what, version); they can be copied for a report."""

    guide_asked = Signal()
    licence_asked = Signal()
    copied = Signal(str)

    def __init__(self, version: str, versions: Sequence[tuple[str, str]], parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setObjectName("about")
        self.setWindowTitle(self.tr("About Traindeck"))
        self._lines = [("Traindeck", version), *versions]
        icon, name, what, terms = label(), label("stateWord"), label(wrap=True), label("muted", wrap=True)
        icon.setPixmap(parent.windowIcon().pixmap(64, 64))
        icon.setAlignment(Qt.AlignmentFlag.AlignTop)
        name.setText(f"Traindeck {version}")
        what.setText(self.tr("Train a language model on your own machine."))
        terms.setText(self.tr("Apache License 2.0. Nothing is sent anywhere unless you switch on Weights & Biases."))
        table = QGridLayout()
        table.setHorizontalSpacing(2 * SPACE)
        table.setVerticalSpacing(SPACE // 2)
        for row, (what_, which) in enumerate(versions):
            left, right = label("muted"), label()
            left.setText(what_)
            right.setText(which)
            right.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            table.addWidget(left, row, 0)
            table.addWidget(right, row, 1)
        table.setColumnStretch(1, 1)
        words = QVBoxLayout()
        words.setSpacing(SPACE)
        for widget in (name, what, terms):
            words.addWidget(widget)
        words.addLayout(table)
        top = QHBoxLayout()
        top.setSpacing(2 * SPACE)
        top.addWidget(icon, 0, Qt.AlignmentFlag.AlignTop)
        top.addLayout(words, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(2 * SPACE, 2 * SPACE, 2 * SPACE, 2 * SPACE)
        layout.setSpacing(2 * SPACE)
        layout.addLayout(top)
        layout.addLayout(self._buttons())
        self.setMinimumWidth(460)
        self.leave.setFocus()

    def _buttons(self) -> QHBoxLayout:
        self.guide, self.licence = button("aboutGuide"), button("aboutLicence")
        self.copy, self.leave = button("aboutCopy"), button("aboutClose")
        self.guide.setText(self.tr("User guide"))
        self.licence.setText(self.tr("Licence"))
        self.copy.setText(self.tr("Copy versions"))
        self.leave.setText(self.tr("Close"))
        self.guide.clicked.connect(self.guide_asked)
        self.licence.clicked.connect(self.licence_asked)
        self.copy.clicked.connect(lambda: self.copied.emit("\n".join(" ".join(line) for line in self._lines)))
        self.leave.clicked.connect(self.close)
        self.leave.setDefault(True)
        row = QHBoxLayout()
        row.setSpacing(SPACE)
        for made in (self.guide, self.licence, self.copy):
            row.addWidget(made)
        row.addStretch(1)
        row.addWidget(self.leave)
        return row
