"""The window comes back as it was left, in its place and on its page; and always where it can be seen."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QScrollArea, QScrollBar, QWidget
from pytestqt.qtbot import QtBot
from runs_page import add, open_page

from app.core.run_state import RunState
from app.window import window_state
from tests.gui.conftest import MakeWindow, has_own_font


def saved(widget: QWidget) -> str:
    return base64.b64encode(widget.saveGeometry().data()).decode("ascii")


def test_page_and_place_come_back(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    controller._settings.welcome = False  # it greets on the page of plots
    first = controller.window
    first.setGeometry(0, 60, 860, 600)  # as narrow as it gets: the screen of the tests is narrower still
    first.show_page("settings")
    first.close()
    second = make_window().window
    assert second.page == "settings"
    qtbot.waitUntil(lambda: bool(second.advanced.fields))  # built, though the tab was shown before the page existed
    assert (second.width(), second.height()) == (860, 600)
    assert second.geometry().y() == 60


def test_a_maximised_window_comes_back_maximised_and_knows_its_size_before(make_window: MakeWindow) -> None:
    first = make_window().window
    first.setGeometry(40, 60, 900, 600)
    first.showMaximized()
    first.close()
    second = make_window().window
    assert second.isMaximized()


def test_a_window_left_in_full_screen_comes_back_with_its_frame(make_window: MakeWindow, qtbot: QtBot) -> None:
    first = make_window().window
    first.toggle_full_screen()
    qtbot.waitUntil(first.isFullScreen)
    first.close()
    assert not make_window().window.isFullScreen()


@pytest.mark.parametrize("left", [(5000, 300), (-4000, 10), (100, -3000), (100, 9000), (-850, 100)])
def test_a_window_of_a_screen_that_is_gone_is_put_where_it_can_be_moved(qtbot: QtBot, left: tuple[int, int]) -> None:
    gone = QWidget()
    qtbot.addWidget(gone)
    gone.setGeometry(*left, 900, 600)
    window = QWidget()
    qtbot.addWidget(window)
    window.setGeometry(*left, 900, 600)
    window_state.restore_geometry("", window)
    window_state.restore_geometry(saved(gone), window)
    room = QGuiApplication.primaryScreen().availableGeometry()
    seen = QRect(window.x(), window.y() - 30, window.width(), 60) & room
    assert seen.width() >= 80, window.geometry()
    assert seen.height() > 0


def test_settings_that_hold_nonsense_leave_the_window_alone(qtbot: QtBot) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    window.setGeometry(100, 100, 500, 400)
    for nonsense in ("", "???", base64.b64encode(b"abc").decode()):
        window_state.restore_geometry(nonsense, window)
        assert window.geometry() == QRect(100, 100, 500, 400)
    assert window.windowState() == Qt.WindowState.WindowNoState


@pytest.mark.parametrize("language", ["en", "zh"])
def test_all_tabs_are_there_in_the_narrowest_window(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    window = make_window("ok", language).window
    window.resize(window.minimumSize())
    window.set_queue_count(12)
    bar = window.tabs.tabBar()
    qtbot.waitUntil(lambda: bar.tabRect(bar.count() - 1).right() <= window.tabs.width())
    assert bar.tabRect(0).left() >= 0


def test_details_of_no_run_have_nothing_to_scroll(make_window: MakeWindow, qtbot: QtBot, own_folders: Path) -> None:
    add(own_folders, "a")
    controller = make_window("ok")
    controller.window.resize(860, 720)
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
    assert page.table.height() == height  # nothing jumps


def test_a_low_page_of_runs_is_for_the_table(make_window: MakeWindow, qtbot: QtBot, own_folders: Path) -> None:
    path = add(own_folders, "a", done=False)
    controller = make_window("ok")
    controller.window.resize(860, 560)
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
def test_the_setup_is_not_cut_in_the_narrowest_window_while_a_run_is_on(
    make_window: MakeWindow, qtbot: QtBot, language: str
) -> None:
    controller = make_window("echo", language)
    window = controller.window
    window.resize(window.minimumSize())
    controller.start_run()
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.TRAINING, timeout=20_000)
    area = window.setup.findChild(QScrollArea)
    assert area is not None
    qtbot.waitUntil(lambda: area.verticalScrollBar().isVisible())
    qtbot.waitUntil(lambda: area.viewport().width() >= area.widget().minimumSizeHint().width())
    if has_own_font():  # the six buttons need 16 pixels more in DejaVu Sans
        qtbot.waitUntil(lambda: window.run_bar.width() >= window.run_bar.minimumSizeHint().width())
