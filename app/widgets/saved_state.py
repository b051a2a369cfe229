"""States of Qt's widgets as text, for the settings file."""

from __future__ import annotations

from PySide6.QtCore import QByteArray
from PySide6.QtWidgets import QHeaderView, QSplitter

from app.core.settings import Settings


def restore_layout(settings: Settings, name: str, widget: QSplitter | QHeaderView) -> None:
    widget.restoreState(decode_state(settings.layouts.get(name, "")))


def save_layout(settings: Settings, name: str, widget: QSplitter | QHeaderView) -> None:
    settings.layouts[name] = encode_state(widget.saveState())


def encode_state(content: QByteArray) -> str:
    return content.toBase64().toStdString()


def decode_state(text: str) -> QByteArray:
    return QByteArray.fromBase64(text.encode("utf-8"))
