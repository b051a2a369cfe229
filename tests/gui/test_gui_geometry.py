"""Window geometry: restored at the next start, visible on the screen, usable at the minimum size."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QScrollArea, QScrollBar, QWidget
from pytestqt.qtbot import QtBot

from app.core.run_state import RunState
from app.window import window_state
from tests.gui.conftest import MakeWindow, has_golden_font, wait_for_state
from tests.gui.runs_page import add_run, open_page


def saved_geometry(widget: QWidget) -> str:
    return base64.b64encode(widget.saveGeometry().data()).decode("ascii")


def test_page_and_geometry_are_restored(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    controller._settings.welcome = False  # the welcome page would be shown instead
    first = controller.window
    first.setGeometry(0, 60, 895, 600)  # the minimum width, more than that of the offscreen screen
    first.show_page("settings")
    first.close()
    second = make_window().window
    assert second.page == "settings"
    qtbot.waitUntil(lambda: bool(second.advanced.fields))  # although the tab was selected before the page was built
    assert (second.width(), second.height()) == (895, 600)
    assert second.geometry().y() == 60


def test_a_maximized_window_is_restored_maximized(make_window: MakeWindow) -> None:
    first = make_window().window
    first.setGeometry(40, 60, 900, 600)
    first.showMaximized()
    first.close()
    second = make_window().window
    assert second.isMaximized()


def test_full_screen_mode_is_not_restored(make_window: MakeWindow, qtbot: QtBot) -> None:
    first = make_window().window
    first.toggle_full_screen()
    qtbot.waitUntil(first.isFullScreen)
    first.close()
    assert not make_window().window.isFullScreen()


@pytest.mark.parametrize("position", [(5000, 300), (-4000, 10), (100, -3000), (100, 9000), (-850, 100)])
def test_a_window_outside_of_the_screen_is_moved_to_a_visible_position(qtbot: QtBot, position: tuple[int, int]) -> None:
    previous = QWidget()
    qtbot.addWidget(previous)
    previous.setGeometry(*position, 900, 600)
    window = QWidget()
    qtbot.addWidget(window)
    window.setGeometry(*position, 900, 600)
    window_state.restore_geometry("", window)
    window_state.restore_geometry(saved_geometry(previous), window)
    available = QGuiApplication.primaryScreen().availableGeometry()
    title_bar = QRect(window.x(), window.y() - 30, window.width(), 60)
    visible = title_bar & available
    assert visible.width() >= 80, window.geometry()
    assert visible.height() > 0


def test_an_invalid_saved_geometry_is_ignored(qtbot: QtBot) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    window.setGeometry(100, 100, 500, 400)
    for invalid in ("", "???", base64.b64encode(b"abc").decode()):
        window_state.restore_geometry(invalid, window)
        assert window.geometry() == QRect(100, 100, 500, 400)
    assert window.windowState() == Qt.WindowState.WindowNoState


@pytest.mark.parametrize("language", ["en", "zh"])
def test_all_tabs_are_visible_in_the_narrowest_window(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    window = make_window("ok", language).window
    window.resize(window.minimumSize())
    window.set_queue_count(12)
    bar = window.tabs.tabBar()
    qtbot.waitUntil(lambda: bar.tabRect(bar.count() - 1).right() <= window.tabs.width())
    assert bar.tabRect(0).left() >= 0
    if has_golden_font():  # no title is elided
        assert all(bar.tabRect(index).size() == bar.tabSizeHint(index) for index in range(bar.count()))


def test_without_a_selected_run_the_details_show_a_hint(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    add_run(home, "a")
    controller = make_window("ok")
    controller.window.resize(895, 720)
    page = open_page(qtbot, controller, 1)
    assert page.details.isVisible()
    page.table.select([])
    qtbot.wait(20)
    assert not any(bar.isVisible() for bar in page.details.findChildren(QScrollBar))
    assert "Select a run" in page.details.hint.text()
    assert page.details.hint.isVisible()
    height = page.table.height()
    page.table.selectRow(0)
    assert not page.details.hint.isVisible()
    assert page.table.height() == height  # the layout does not change


def test_a_low_runs_page_hides_the_details(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    path = add_run(home, "a", done=False)
    controller = make_window("ok")
    controller.window.resize(895, 560)
    page = open_page(qtbot, controller, 1)
    controller.open_run(path)
    controller.window.show_page("runs")
    qtbot.waitUntil(
        lambda: controller.window.viewed_run_bar.isVisible() and controller.window.interrupted_run_bar.isVisible()
    )
    qtbot.waitUntil(lambda: not page.details.isVisible())
    controller.window.resize(1280, 900)
    qtbot.waitUntil(page.details.isVisible)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_setup_panel_is_not_clipped_in_the_narrowest_window_during_a_run(
    make_window: MakeWindow, qtbot: QtBot, language: str
) -> None:
    controller = make_window("echo", language)
    window = controller.window
    window.resize(window.minimumSize())
    controller.start_run()
    wait_for_state(qtbot, controller, RunState.TRAINING)
    area = window.setup.findChild(QScrollArea)
    assert area is not None
    qtbot.waitUntil(lambda: area.verticalScrollBar().isVisible())
    qtbot.waitUntil(lambda: area.viewport().width() >= area.widget().minimumSizeHint().width())
    if has_golden_font():  # the six buttons need 16 pixels more in DejaVu Sans
        qtbot.waitUntil(lambda: window.run_bar.width() >= window.run_bar.minimumSizeHint().width())
