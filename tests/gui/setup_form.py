"""Helpers for tests of the setup form: fields, typed text, dropped files."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QMimeData, QPoint, Qt, QUrl
from PySide6.QtGui import QAccessible, QDragEnterEvent, QDropEvent, QInputMethodEvent
from PySide6.QtWidgets import QApplication, QLineEdit, QWidget
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.pages.setup.all_settings import AllSettingsPage
from app.pages.setup.knob_field import KnobField
from tests.gui.conftest import LEFT

_ACTIONS = Qt.DropAction.CopyAction | Qt.DropAction.MoveAction
_OUTSIDE_SETUP_PANEL = QPoint(600, 300)  # in the window


def main_field(controller: Controller, name: str) -> KnobField:
    """A field of the setup panel."""
    return next(field for field in controller.window.setup.fields if field.knob.name == name)


def all_settings(controller: Controller, qtbot: QtBot) -> AllSettingsPage:
    """The page of all settings with all its fields."""
    controller.window.show_page("settings")
    qtbot.waitUntil(lambda: bool(controller.window.advanced.fields))
    return controller.window.advanced


def all_fields(controller: Controller, qtbot: QtBot) -> dict[str, KnobField]:
    return {field.knob.name: field for field in all_settings(controller, qtbot).fields}


def visible_names(page: AllSettingsPage) -> list[str]:
    return [field.knob.name for field in page.fields if not field.isHidden()]


def type_into(qtbot: QtBot, field: KnobField | QLineEdit, text: str) -> QLineEdit:
    """Replace the text of a field by key presses."""
    editor = field.editor if isinstance(field, KnobField) else field
    assert isinstance(editor, QLineEdit)
    editor.setFocus()
    editor.selectAll()
    if text:
        type_text(qtbot, editor, text)
    else:
        qtbot.keyClick(editor, Qt.Key.Key_Delete)
    return editor


def type_text(qtbot: QtBot, editor: QWidget, text: str) -> None:
    """Type ASCII with keys and the rest through an input method: QTest aborts on such keys."""
    if text.isascii():
        qtbot.keyClicks(editor, text)
        return
    event = QInputMethodEvent()
    event.setCommitString(text)
    QApplication.sendEvent(editor, event)


def description(widget: QWidget) -> str:
    """The accessible description, which a screen reader reads after the name."""
    return QAccessible.queryAccessibleInterface(widget).text(QAccessible.Text.Description)


def mime_data(*paths: Path | str) -> QMimeData:
    """Dragged files (`Path`) and other URLs (`str`)."""
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(path)) if isinstance(path, Path) else QUrl(path) for path in paths])
    return mime


def drag(widget: QWidget, mime: QMimeData, position: QPoint = _OUTSIDE_SETUP_PANEL) -> QDragEnterEvent:
    event = QDragEnterEvent(position, _ACTIONS, mime, LEFT, Qt.KeyboardModifier.NoModifier)
    QApplication.sendEvent(widget, event)
    return event


def drop(widget: QWidget, mime: QMimeData, position: QPoint = _OUTSIDE_SETUP_PANEL) -> None:
    """Drag over the widget and drop."""
    drag(widget, mime, position)
    event = QDropEvent(position.toPointF(), _ACTIONS, mime, LEFT, Qt.KeyboardModifier.NoModifier)
    QApplication.sendEvent(widget, event)
