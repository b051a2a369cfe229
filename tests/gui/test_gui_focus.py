"""Keyboard focus and current row after a control or a row is disabled, hidden or removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.metrics.metric_store import MetricStore
from app.pages.plots.plot_specs import Overlay, overlay_color
from app.window.banner import BannerContent
from tests.gui.conftest import MakeWindow, activate
from tests.gui.queue_window import enqueue, items, select
from tests.gui.runs_page import add_run, focus_table, open_page


@pytest.fixture
def controller(make_window: MakeWindow, qtbot: QtBot) -> Controller:
    controller = make_window(check="check")
    controller.welcome_page.show_plots()
    activate(qtbot, controller.window)
    return controller


def press_space(qtbot: QtBot, control: QWidget) -> None:
    """Focus a control and press the space bar."""
    control.setFocus(Qt.FocusReason.TabFocusReason)
    assert control.hasFocus()
    qtbot.keyClick(control, Qt.Key.Key_Space)


def wait_for_focus(qtbot: QtBot, control: Callable[[], QWidget]) -> None:
    try:
        qtbot.waitUntil(lambda: control().hasFocus())
    finally:
        assert QApplication.focusWidget() is control()


def test_a_picture_of_a_plot_keeps_the_focus_on_its_menu_button(controller: Controller) -> None:
    plots = controller.window.plots
    button = plots.charts["loss"]._menu_button
    button.setFocus(Qt.FocusReason.TabFocusReason)
    assert button.hasFocus()
    plots.picture("loss")
    assert button.hasFocus()


def test_removing_overlays_moves_the_focus_to_the_sub_page_button(controller: Controller, qtbot: QtBot) -> None:
    plots = controller.window.plots
    plots.set_overlays([Overlay("other", MetricStore(), overlay_color(0))])
    press_space(qtbot, plots.remove_overlays_button)
    wait_for_focus(qtbot, lambda: plots.overview)


def test_dismissing_a_banner_moves_the_focus_to_the_next_banner_or_to_the_tabs(
    controller: Controller, qtbot: QtBot
) -> None:
    window = controller.window
    for text in ("first", "second"):
        window.banners.add(BannerContent("error", text.title))
    qtbot.waitUntil(lambda: window.banners.isVisible())
    first, second = window.banners._banners
    press_space(qtbot, first.close_button)
    wait_for_focus(qtbot, lambda: second.close_button)
    press_space(qtbot, second.close_button)
    wait_for_focus(qtbot, window.tabs.tabBar)


def test_the_remove_button_moves_the_focus_to_the_data_list(controller: Controller, qtbot: QtBot) -> None:
    data = controller.window.setup.data
    controller.form.add_data(["builtin:tasks"])
    data.list.select_paths(["builtin:tasks"])
    press_space(qtbot, data.remove_button)
    assert "builtin:tasks" not in controller.form.data
    wait_for_focus(qtbot, lambda: data.list)


def test_a_check_moves_the_focus_to_start(controller: Controller, qtbot: QtBot) -> None:
    bar = controller.window.run_bar
    qtbot.waitUntil(bar.check.isEnabled)
    press_space(qtbot, bar.check)
    wait_for_focus(qtbot, lambda: bar.start)


def test_the_queue_table_has_the_focus_when_the_page_is_shown(controller: Controller, qtbot: QtBot) -> None:
    window = controller.window
    window.plots.overview.setFocus(Qt.FocusReason.TabFocusReason)
    window.show_page("queue")
    wait_for_focus(qtbot, lambda: window.queue.table)


def test_a_disabled_queue_button_moves_the_focus_to_the_table(controller: Controller, qtbot: QtBot) -> None:
    controller.queue_controller.hold_reason = "paused"
    enqueue(qtbot, controller, "one", "two", "three")
    controller.window.show_page("queue")
    queue = controller.window.queue
    queue.table.selectRow(1)
    press_space(qtbot, queue.up)
    wait_for_focus(qtbot, lambda: queue.table)
    press_space(qtbot, queue.remove)
    wait_for_focus(qtbot, lambda: queue.table)
    assert [item.name for item in items(controller)] == ["one", "three"]


def test_the_down_key_selects_the_run_after_an_archived_one(controller: Controller, qtbot: QtBot, home: Path) -> None:
    paths = [add_run(home, f"run {index}", age_s=1000 + index) for index in range(5)]
    page = open_page(qtbot, controller, 5)
    focus_table(qtbot, page)
    page.table.select([paths[2]])
    page.run_actions["archive"].trigger()
    qtbot.waitUntil(lambda: page.proxy.rowCount() == 4)
    qtbot.keyClick(page.table, Qt.Key.Key_Down)
    assert page.paths() == [paths[3]]


def test_the_down_key_selects_the_item_after_a_removed_one(controller: Controller, qtbot: QtBot) -> None:
    controller.queue_controller.hold_reason = "paused"
    controller.window.show_page("queue")
    enqueue(qtbot, controller, "one", "two", "three", "four")
    table = controller.window.queue.table
    table.setFocus()
    select(controller, "three")
    qtbot.wait(1)  # the table registers its shortcuts in the next iteration of the event loop
    qtbot.keyClick(table, Qt.Key.Key_Delete)
    assert [item.name for item in items(controller)] == ["one", "two", "four"]
    qtbot.keyClick(table, Qt.Key.Key_Down)
    assert [item.name for item in table.selected_rows()] == ["four"]
