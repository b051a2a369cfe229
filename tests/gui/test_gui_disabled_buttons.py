"""The tooltip of a disabled button says why it is disabled."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, QPoint
from PySide6.QtGui import QHelpEvent
from PySide6.QtWidgets import QAbstractButton, QApplication, QToolTip, QWidget
from pytestqt.qtbot import QtBot

from app.pages.registry import PAGES
from tests.gui.conftest import MakeWindow

HINTS = ("Del", "Start a new", "Copy", "Change", "Correct", "Ctrl+", "Generate the last", "Overlay", "Alt+", "Measure")
"""Beginnings of the tooltips of enabled buttons."""


def shown_tooltip(widget: QWidget) -> str:
    position = QPoint(2, 2)
    QToolTip.hideText()
    QApplication.sendEvent(widget, QHelpEvent(QEvent.Type.ToolTip, position, widget.mapToGlobal(position)))
    return QToolTip.text()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_disabled_button_says_why(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    window = make_window(language=language).window
    reasons: dict[str, str] = {}
    for page in (*(page.id for page in PAGES), "samples"):
        window.show_page("chat" if page == "samples" else page)
        window.chat.show_samples(page == "samples")
        qtbot.waitUntil(window.tabs.currentWidget().isVisible)
        for button in window.findChildren(QAbstractButton):
            if button.isVisible() and not button.isEnabled() and button.objectName() not in reasons:
                reasons[button.objectName()] = shown_tooltip(button)
    assert {
        "stop",
        "resume",
        "removeData",
        "copyTurn",
        "correctTurn",
        "openRun",
        "queueUp",
        "sampleNow",
        "resetAll",
    } <= reasons.keys()
    assert {name: text for name, text in reasons.items() if not text or text.startswith(HINTS)} == {}
