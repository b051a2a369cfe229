"""Who works by keys goes on from where he was: no button takes the focus along when it is disabled or goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot
from queue_window import enqueue, items, select
from runs_page import add, focus, open_page

from app.controller import Controller
from app.core.metrics.metric_store import MetricStore
from app.pages.plots.plot_specs import Overlay, overlay_color
from app.window.banner import BannerContent
from tests.gui.conftest import MakeWindow


@pytest.fixture
def controller(make_window: MakeWindow, qtbot: QtBot) -> Controller:
    made = make_window(check="check")
    made.welcome_page.show_plots()
    made.window.activateWindow()
    qtbot.waitUntil(made.window.isActiveWindow)
    return made


def press(qtbot: QtBot, control: QWidget) -> None:
    """As with the space bar."""
    control.setFocus(Qt.FocusReason.TabFocusReason)
    assert control.hasFocus()
    qtbot.keyClick(control, Qt.Key.Key_Space)


def focused(qtbot: QtBot, control: Callable[[], QWidget]) -> None:
    try:
        qtbot.waitUntil(lambda: control().hasFocus())
    finally:
        assert QApplication.focusWidget() is control()


def test_a_picture_of_a_plot_leaves_the_focus_at_its_menu(controller: Controller) -> None:
    plots = controller.window.plots
    button = plots.charts["loss"]._menu_button
    button.setFocus(Qt.FocusReason.TabFocusReason)
    assert button.hasFocus()
    plots.picture("loss")
    assert button.hasFocus()


def test_without_overlays_the_focus_goes_to_the_sub_page_button(controller: Controller, qtbot: QtBot) -> None:
    plots = controller.window.plots
    plots.set_overlays([Overlay("other", MetricStore(), overlay_color(0))])
    press(qtbot, plots.remove_overlays_button)
    focused(qtbot, lambda: plots.overview)


def test_a_checkpoint_that_is_being_exported_leaves_the_focus_with_the_checkpoints(
    controller: Controller, qtbot: QtBot, own_folders: Path
) -> None:
    path = add(own_folders, "one")
    page = open_page(qtbot, controller, 1)
    page.table.select([path])
    export = page.details.checkpoints.export
    qtbot.waitUntil(export.isEnabled)
    export.setFocus(Qt.FocusReason.TabFocusReason)
    page.details.checkpoints.set_exporting(True)
    focused(qtbot, lambda: page.details.checkpoints.table)


def test_a_banner_that_is_dismissed_leads_to_the_next_and_the_last_one_to_what_is_below(
    controller: Controller, qtbot: QtBot
) -> None:
    window = controller.window
    for words in ("one", "two"):
        window.banners.add(BannerContent("error", words.title))
    qtbot.waitUntil(lambda: window.banners.isVisible())
    first, second = window.banners._banners
    press(qtbot, first.close_button)
    focused(qtbot, lambda: second.close_button)
    press(qtbot, second.close_button)
    focused(qtbot, window.tabs.tabBar)


def test_who_removes_data_by_the_button_is_in_the_list_of_data(controller: Controller, qtbot: QtBot) -> None:
    data = controller.window.setup.data
    controller.form.add_data(["builtin:tasks"])
    data.list.select_paths(["builtin:tasks"])
    press(qtbot, data.remove_button)
    assert "builtin:tasks" not in controller.form.data
    focused(qtbot, lambda: data.list)


def test_a_check_leaves_the_focus_at_start(controller: Controller, qtbot: QtBot) -> None:
    bar = controller.window.run_bar
    qtbot.waitUntil(bar.check.isEnabled)
    press(qtbot, bar.check)
    focused(qtbot, lambda: bar.start)


def test_the_queue_has_the_focus_when_it_is_first_shown(controller: Controller, qtbot: QtBot) -> None:
    window = controller.window
    window.plots.overview.setFocus(Qt.FocusReason.TabFocusReason)
    window.show_page("queue")
    focused(qtbot, lambda: window.queue.table)


def test_a_button_of_the_queue_that_can_do_no_more_gives_the_focus_to_the_table(
    controller: Controller, qtbot: QtBot
) -> None:
    controller.queue_controller.hold_reason = "paused"
    enqueue(qtbot, controller, "one", "two", "three")
    controller.window.show_page("queue")
    queue = controller.window.queue
    queue.table.selectRow(1)
    press(qtbot, queue.up)
    focused(qtbot, lambda: queue.table)
    press(qtbot, queue.remove)
    focused(qtbot, lambda: queue.table)
    assert [item.name for item in items(controller)] == ["one", "three"]


def test_keys_go_on_from_where_a_row_was_taken_away(controller: Controller, qtbot: QtBot, own_folders: Path) -> None:
    paths = [add(own_folders, f"run {place}", age_s=1000 + place) for place in range(5)]
    page = open_page(qtbot, controller, 5)
    focus(qtbot, page)
    page.table.select([paths[2]])
    page.run_actions["archive"].trigger()
    qtbot.waitUntil(lambda: page.proxy.rowCount() == 4)
    qtbot.keyClick(page.table, Qt.Key.Key_Down)
    assert page.paths() == [paths[3]]


def test_keys_go_on_from_where_a_waiting_run_was_taken_away(controller: Controller, qtbot: QtBot) -> None:
    controller.queue_controller.hold_reason = "paused"
    controller.window.show_page("queue")
    enqueue(qtbot, controller, "one", "two", "three", "four")
    table = controller.window.queue.table
    table.setFocus()
    select(controller, "three")
    qtbot.wait(1)  # keys of a table are known from the turn after it was shown
    qtbot.keyClick(table, Qt.Key.Key_Delete)
    assert [item.name for item in items(controller)] == ["one", "two", "four"]
    qtbot.keyClick(table, Qt.Key.Key_Down)
    assert [item.name for item in table.selected_rows()] == ["four"]
