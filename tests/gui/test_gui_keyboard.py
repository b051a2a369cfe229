"""Keyboard operation: Tab reaches every control in reading order, and each control has an accessible name."""

from __future__ import annotations

from itertools import pairwise

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAccessible
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QLineEdit,
    QPlainTextEdit,
    QScrollArea,
    QScrollBar,
    QTextEdit,
    QWidget,
)
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from app.pages.registry import PAGES
from app.window.main_window import MainWindow
from tests.gui.conftest import MakeWindow, activate, wait_for_state
from trainer_core import protocol

PAGE_IDS = [page.id for page in PAGES]
CONTROLS = (
    QAbstractButton, QAbstractItemView, QAbstractSlider, QAbstractSpinBox, QComboBox, QLineEdit, QPlainTextEdit,
    QTextEdit,
)  # fmt: skip
# Child widgets of these are not controls of their own.
COMPOSITES = (QComboBox, QAbstractSpinBox, QLineEdit, QAbstractItemView)


def show_page(qtbot: QtBot, controller: Controller, page: str) -> MainWindow:
    window = controller.window
    window.resize(1280, 800)
    window.show_page(page)
    activate(qtbot, window)
    qtbot.wait(60)
    return window


def controls(window: MainWindow) -> list[QWidget]:
    """Visible and enabled controls of a window."""
    widgets = []
    for widget in window.findChildren(QWidget):
        is_part = isinstance(widget.parentWidget(), COMPOSITES) or isinstance(widget, QScrollBar)
        if isinstance(widget, CONTROLS) and widget.isVisible() and widget.isEnabled() and not is_part:
            widgets.append(widget)
    return [widget for widget in widgets if widget.window() is window and not is_in_tab_bar(widget)]


def is_in_tab_bar(widget: QWidget) -> bool:
    parent = widget.parentWidget()
    return parent is not None and parent.metaObject().className() == "QTabBar"


def tab_order(window: MainWindow) -> list[QWidget]:
    """Widgets in the order in which Tab reaches them."""
    window.setFocus()  # Tab continues with the first control
    QTest.keyClick(window, Qt.Key.Key_Tab)
    reached: list[QWidget] = []
    for _ in range(600):
        focus = QApplication.focusWidget()
        if focus is not None:
            if reached and focus is reached[0]:
                break
            if focus not in reached and not isinstance(focus, QScrollArea):  # only scrolls
                reached.append(focus)
        QTest.keyClick(focus or window, Qt.Key.Key_Tab)
    return reached


def position(widget: QWidget, window: MainWindow) -> QPoint:
    """Position in the window with all scroll areas at their top."""
    area = widget.parentWidget()
    while area is not None and not isinstance(area, QScrollArea):
        area = area.parentWidget()
    if area is None or area.widget() is None:
        return widget.mapTo(window, QPoint())
    return widget.mapTo(area.widget(), QPoint()) + area.mapTo(window, QPoint())


def accessible_name(widget: QWidget) -> str:
    return QAccessible.queryAccessibleInterface(widget).text(QAccessible.Text.Name)


def describe(widget: QWidget) -> str:
    return f"{type(widget).__name__} {widget.objectName()!r} in {type(widget.parentWidget()).__name__}"


@pytest.mark.parametrize("page", PAGE_IDS)
def test_tab_reaches_every_control(make_window: MakeWindow, qtbot: QtBot, page: str) -> None:
    window = show_page(qtbot, make_window(), page)
    reached = tab_order(window)
    missed = [widget for widget in controls(window) if not {widget, widget.focusProxy()} & {*reached}]
    assert [describe(widget) for widget in missed] == []
    assert window.tabs.tabBar() in reached


@pytest.mark.parametrize("page", PAGE_IDS)
def test_tab_follows_the_reading_order(make_window: MakeWindow, qtbot: QtBot, page: str) -> None:
    """From the setup panel to the run bar and the page. Within each, downward or to the right."""
    window = show_page(qtbot, make_window(), page)
    for part in (window.setup, window.run_bar, window.pages[page]):
        inside = [widget for widget in tab_order(window) if part.isAncestorOf(widget)]
        for before, after in pairwise(inside):
            first, second = position(before, window), position(after, window)
            is_below = second.y() + after.height() > first.y()
            is_right = second.x() >= first.x() + before.width() / 2
            assert is_below or is_right, f"{describe(before)} → {describe(after)}"
    parts = (window.setup, window.run_bar, window.pages[page])
    order = [index for widget in tab_order(window) for index, part in enumerate(parts) if part.isAncestorOf(widget)]
    assert order == sorted(order)


@pytest.mark.parametrize("name", ["setup", "runs"])
def test_splitter_handles_are_focused_and_moved_by_keys(make_window: MakeWindow, qtbot: QtBot, name: str) -> None:
    window = show_page(qtbot, make_window(), "runs")
    splitter = window.splitter if name == "setup" else window.runs.splitter
    handle = splitter.handle(1)
    assert handle in tab_order(window)
    assert accessible_name(handle)
    before = splitter.sizes()
    handle.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.keyClick(handle, Qt.Key.Key_Right if name == "setup" else Qt.Key.Key_Down)
    assert splitter.sizes()[0] > before[0]
    qtbot.keyClick(handle, Qt.Key.Key_Left if name == "setup" else Qt.Key.Key_Up)
    assert splitter.sizes() == before


def test_tab_reaches_the_controls_of_a_run(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("echo")
    controller.window.menus.actions["start"].trigger()
    wait_for_state(qtbot, controller, RunState.TRAINING)
    controller.active_run.handle_event(
        protocol.Warn(code="disk.waiting", params={"path": "D:", "needed_mib": 2, "free_mib": 1})
    )
    window = show_page(qtbot, controller, "log")
    reached = tab_order(window)
    visible = controls(window)
    assert window.run_bar.pause in reached
    assert window.run_bar.stop in reached
    assert any(window.banners.isAncestorOf(widget) for widget in visible)
    assert [describe(widget) for widget in visible if widget not in reached] == []
    assert [describe(widget) for widget in visible if not accessible_name(widget).strip()] == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_control_has_an_accessible_name(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    controller = make_window(language=language)
    unnamed = []
    for page in (*PAGE_IDS, "samples"):
        controller.window.chat.show_samples(page == "samples")
        window = show_page(qtbot, controller, "chat" if page == "samples" else page)
        unnamed += [f"{page}: {describe(widget)}" for widget in controls(window) if not accessible_name(widget).strip()]
    assert not unnamed
