"""Without a mouse: Tab reaches every control of every page in the order one reads, and each says what it is."""

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
from tests.gui.conftest import MakeWindow
from trainer_core import protocol

PAGE_IDS = [page.id for page in PAGES]
CONTROLS = (
    QAbstractButton, QAbstractItemView, QAbstractSlider, QAbstractSpinBox, QComboBox, QLineEdit, QPlainTextEdit,
    QTextEdit,
)  # fmt: skip
PARTS_OF_ONE = (QComboBox, QAbstractSpinBox, QLineEdit, QAbstractItemView)
"""What a control is made of inside is no control of its own."""


def show(qtbot: QtBot, controller: Controller, page: str) -> MainWindow:
    window = controller.window
    window.resize(1280, 800)
    window.show_page(page)
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    qtbot.wait(60)
    return window


def controls(window: MainWindow) -> list[QWidget]:
    """Everything on show that can be used now."""
    found = []
    for widget in window.findChildren(QWidget):
        inside = isinstance(widget.parentWidget(), PARTS_OF_ONE) or isinstance(widget, QScrollBar)
        if isinstance(widget, CONTROLS) and widget.isVisible() and widget.isEnabled() and not inside:
            found.append(widget)
    return [widget for widget in found if widget.window() is window and not is_of_a_tab_bar(widget)]


def is_of_a_tab_bar(widget: QWidget) -> bool:
    parent = widget.parentWidget()
    return parent is not None and parent.metaObject().className() == "QTabBar"


def tabbed(window: MainWindow) -> list[QWidget]:
    """The controls in the order in which Tab reaches them, once round."""
    window.setFocus()  # of itself it takes none: Tab goes to the first that does
    QTest.keyClick(window, Qt.Key.Key_Tab)
    reached: list[QWidget] = []
    for _ in range(600):
        focus = QApplication.focusWidget()
        if focus is not None:
            if reached and focus is reached[0]:
                break
            if focus not in reached and not isinstance(focus, QScrollArea):  # these only scroll
                reached.append(focus)
        QTest.keyClick(focus or window, Qt.Key.Key_Tab)
    return reached


def place(widget: QWidget, window: MainWindow) -> QPoint:
    """Where it is in the window, with all that can be scrolled at its beginning: Tab scrolls."""
    area = widget.parentWidget()
    while area is not None and not isinstance(area, QScrollArea):
        area = area.parentWidget()
    if area is None or area.widget() is None:
        return widget.mapTo(window, QPoint())
    return widget.mapTo(area.widget(), QPoint()) + area.mapTo(window, QPoint())


def told(widget: QWidget) -> str:
    """What a screen reader says of it."""
    return QAccessible.queryAccessibleInterface(widget).text(QAccessible.Text.Name)


def of(widget: QWidget) -> str:
    return f"{type(widget).__name__} {widget.objectName()!r} in {type(widget.parentWidget()).__name__}"


@pytest.mark.parametrize("page", PAGE_IDS)
def test_tab_reaches_every_control(make_window: MakeWindow, qtbot: QtBot, page: str) -> None:
    window = show(qtbot, make_window(), page)
    reached = tabbed(window)
    missed = [of(widget) for widget in controls(window) if widget not in reached and widget.focusProxy() not in reached]
    assert not missed
    assert window.tabs.tabBar() in reached


@pytest.mark.parametrize("page", PAGE_IDS)
def test_tab_goes_the_way_one_reads(make_window: MakeWindow, qtbot: QtBot, page: str) -> None:
    """From the setup at the left to the run bar and the page below it; within each down, or on to the right."""
    window = show(qtbot, make_window(), page)
    for part in (window.setup, window.run_bar, window.pages[page]):
        inside = [widget for widget in tabbed(window) if part.isAncestorOf(widget)]
        for before, after in pairwise(inside):
            first, second = place(before, window), place(after, window)
            below = second.y() + after.height() > first.y()
            right = second.x() >= first.x() + before.width() / 2
            assert below or right, f"{of(before)} → {of(after)}"
    parts = (window.setup, window.run_bar, window.pages[page])
    order = [n for widget in tabbed(window) for n, part in enumerate(parts) if part.isAncestorOf(widget)]
    assert order == sorted(order)


@pytest.mark.parametrize("name", ["setup", "runs"])
def test_dividers_are_reached_and_moved_by_keys(make_window: MakeWindow, qtbot: QtBot, name: str) -> None:
    window = show(qtbot, make_window(), "runs")
    splitter = window.splitter if name == "setup" else window.runs.splitter
    divider = splitter.handle(1)
    assert divider in tabbed(window)
    assert told(divider)
    before = splitter.sizes()
    divider.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.keyClick(divider, Qt.Key.Key_Right if name == "setup" else Qt.Key.Key_Down)
    assert splitter.sizes()[0] > before[0]
    qtbot.keyClick(divider, Qt.Key.Key_Left if name == "setup" else Qt.Key.Key_Up)
    assert splitter.sizes() == before


def test_what_appears_during_a_run_is_reached_too(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("echo")
    controller.window.menus.actions["start"].trigger()
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.TRAINING, timeout=20_000)
    controller.active_run.handle_event(
        protocol.Warn(code="disk.waiting", params={"path": "D:", "needed_mib": 2, "free_mib": 1})
    )
    window = show(qtbot, controller, "log")
    reached = tabbed(window)
    here = controls(window)
    assert window.run_bar.pause in reached
    assert window.run_bar.stop in reached
    assert any(window.banners.isAncestorOf(widget) for widget in here)
    assert [of(widget) for widget in here if widget not in reached] == []
    assert [of(widget) for widget in here if not told(widget).strip()] == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_control_says_what_it_is(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    controller = make_window(language=language)
    nameless = []
    for page in PAGE_IDS:
        window = show(qtbot, controller, page)
        nameless += [f"{page}: {of(widget)}" for widget in controls(window) if not told(widget).strip()]
    assert not nameless
