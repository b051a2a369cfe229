"""About dialog: version, runtime versions, documents."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QDialog, QGridLayout, QHBoxLayout, QVBoxLayout, QWidget

from app.texts import tr
from app.theme.palette import SPACING
from app.widgets.basic import label, push_button


class About(QDialog):
    """`versions`: (component, version)."""

    guide_requested = Signal()
    licence_requested = Signal()
    copy_requested = Signal(str)

    def __init__(self, version: str, versions: Sequence[tuple[str, str]], parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setObjectName("about")
        self.setWindowTitle(tr("help.about_traindeck"))
        self._copied_text = "\n".join(" ".join(line) for line in [("Traindeck", version), *versions])
        icon, texts, top = label(), QVBoxLayout(), QHBoxLayout()
        icon.setPixmap(parent.windowIcon().pixmap(64, 64))
        texts.setSpacing(SPACING)
        for text, name in (
            (f"Traindeck {version}", "stateWord"),
            (tr("help.train_language_model_on_your"), ""),
            (tr("help.apache_license_2_0_nothing"), "muted"),
        ):
            line = label(name, wrap=True)
            line.setText(text)
            texts.addWidget(line)
        texts.addLayout(_table(versions))
        top.setSpacing(2 * SPACING)
        top.addWidget(icon, 0, Qt.AlignmentFlag.AlignTop)
        top.addLayout(texts, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(2 * SPACING, 2 * SPACING, 2 * SPACING, 2 * SPACING)
        layout.setSpacing(2 * SPACING)
        layout.addLayout(top)
        layout.addLayout(self._buttons())
        self.setMinimumWidth(460)
        self.setFocus()

    def _buttons(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(SPACING)
        for name, text, slot in (
            ("aboutGuide", tr("help.user_guide"), self.guide_requested.emit),
            ("aboutLicence", tr("help.licence"), self.licence_requested.emit),
            ("aboutCopy", tr("help.copy_versions"), lambda: self.copy_requested.emit(self._copied_text)),
            ("aboutClose", tr("common.close"), self.close),
        ):
            button = push_button(name)
            button.setText(text)
            button.clicked.connect(slot)
            row.addWidget(button)
        row.insertStretch(3, 1)
        button.setDefault(True)
        self.setFocusProxy(button)
        return row


def _table(versions: Sequence[tuple[str, str]]) -> QGridLayout:
    table = QGridLayout()
    table.setHorizontalSpacing(2 * SPACING)
    table.setVerticalSpacing(SPACING // 2)
    table.setColumnStretch(1, 1)
    for row, (component, version) in enumerate(versions):
        name, value = label("muted"), label()
        name.setText(component)
        value.setText(version)
        value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        table.addWidget(name, row, 0)
        table.addWidget(value, row, 1)
    return table
