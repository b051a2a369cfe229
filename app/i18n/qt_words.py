"""Words of Qt's own file dialog that Qt's Chinese lacks, or has for something else (体积 is a volume): they stand here
for lupdate, and Qt asks for them."""

from __future__ import annotations

from PySide6.QtCore import QT_TRANSLATE_NOOP

LACKING = (
    QT_TRANSLATE_NOOP("QFileDialog", "&Look in:"),
    QT_TRANSLATE_NOOP("QFileDialog", "Files of &type:"),
    QT_TRANSLATE_NOOP("QAbstractFileIconProvider", "Folder"),
    QT_TRANSLATE_NOOP("QFileSystemModel", "Size"),
)
