"""Small screen: 1366 x 768 at 150 %, 911 x 512 logical pixels, about 900 x 430 without title bar and task bar."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QRect, QSize
from PySide6.QtWidgets import QAbstractButton, QAbstractScrollArea, QDialog, QLineEdit, QScrollArea, QWidget
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.pages.registry import PAGES
from app.window.banner import BannerContent
from app.window.main_window import MainWindow
from tests.gui.conftest import MakeWindow
from tests.gui.runs_page import add_run

USABLE_SIZE = QSize(900, 430)
PAGE_IDS = [page.id for page in PAGES]
DIALOGS = ("guide", "shortcuts", "about", "sweep")


def rect_in_window(widget: QWidget, window: QWidget) -> QRect:
    return QRect(widget.mapTo(window, QPoint()), widget.size())


def is_fully_visible(widget: QWidget, window: QWidget) -> bool:
    """Return whether no part of a widget is outside of the window or clipped by a parent."""
    return (
        window.rect().contains(rect_in_window(widget, window))
        and widget.visibleRegion().boundingRect() == widget.rect()
    )


def controls(parent: QWidget) -> Iterator[QWidget]:
    for widget in parent.findChildren(QWidget):
        if isinstance(widget, QAbstractButton | QLineEdit) and widget.isVisible() and widget.isEnabled():
            yield widget


def scroll_into_view(widget: QWidget) -> None:
    area = widget.parentWidget()
    while area is not None:
        if isinstance(area, QScrollArea):
            area.ensureWidgetVisible(widget)
        area = area.parentWidget()


def shrink_window(controller: Controller, qtbot: QtBot) -> MainWindow:
    """Resize the window to the usable size."""
    window = controller.window
    window.resize(USABLE_SIZE)
    qtbot.wait(30)
    assert window.size() == USABLE_SIZE
    return window


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_start_is_visible_on_every_page(make_window: MakeWindow, qtbot: QtBot, language: str, theme: str) -> None:
    window = shrink_window(make_window(language=language, theme=theme), qtbot)
    for page in PAGE_IDS:
        window.show_page(page)
        qtbot.wait(30)
        assert window.size() == USABLE_SIZE, page
        for button in (window.run_bar.start, window.run_bar.stop, window.run_bar.queue):
            assert is_fully_visible(button, window), page


@pytest.mark.parametrize("page", PAGE_IDS)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_control_of_a_page_can_be_scrolled_into_view(
    make_window: MakeWindow, qtbot: QtBot, language: str, page: str
) -> None:
    window = shrink_window(make_window(language=language), qtbot)
    window.show_page(page)
    qtbot.waitUntil(lambda: page != "settings" or bool(window.advanced.fields), timeout=10_000)
    qtbot.wait(150)
    clipped = []
    for widget in controls(window.pages[page]):
        if isinstance(widget.parentWidget(), QAbstractScrollArea | QLineEdit):
            continue  # part of the scroll area itself
        scroll_into_view(widget)
        if not is_fully_visible(widget, window):
            clipped.append(f"{type(widget).__name__} {widget.objectName()!r} at {rect_in_window(widget, window)}")
    assert clipped == []
    assert window.run_bar.start.visibleRegion().boundingRect() == window.run_bar.start.rect()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_start_and_the_page_are_reachable_below_messages(
    make_window: MakeWindow, qtbot: QtBot, home: Path, language: str
) -> None:
    add_run(home, "broken", done=False)
    controller = make_window(language=language)
    window = shrink_window(controller, qtbot)
    for number in range(3):
        window.banners.add(BannerContent("error", lambda: "The disk is full. " * 12, "line\n" * 8, str(number)))
    window.restart_bar.set_message("Restarts in a minute")
    window.interrupted_run_bar.set_message("A run was interrupted")
    window.viewed_run_bar.set_message("An earlier run")
    window.show_page("log")
    qtbot.wait(100)
    assert window.size() == USABLE_SIZE
    assert is_fully_visible(window.run_bar.start, window)
    for control in (window.log.search, *controls(window.banners)):
        scroll_into_view(control)
        qtbot.wait(10)
        assert is_fully_visible(control, window), control.objectName()
    assert is_fully_visible(window.run_bar.start, window)


def test_start_is_visible_beside_the_reason_why_it_is_disabled(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    window = shrink_window(controller, qtbot)
    controller.form.set_text("batch_size", "0")
    qtbot.wait(30)
    for widget in (window.run_bar.start, window.run_bar.reason_label, window.run_bar.show_reason_button):
        assert is_fully_visible(widget, window)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_dialogs_can_be_shrunk_to_the_height_of_the_screen(
    make_window: MakeWindow, qtbot: QtBot, language: str
) -> None:
    window = shrink_window(make_window(language=language), qtbot)
    for name in DIALOGS:
        window.menus.actions[name].trigger()
    qtbot.wait(100)
    dialogs = window.findChildren(QDialog)
    assert len(dialogs) == len(DIALOGS)
    for dialog in dialogs:
        dialog.resize(dialog.width(), 400)
        qtbot.wait(30)
        assert dialog.height() <= 400, type(dialog).__name__
        for button in controls(dialog):
            if isinstance(button, QAbstractButton) and not isinstance(button.parentWidget(), QAbstractScrollArea):
                scroll_into_view(button)
                assert is_fully_visible(button, dialog), (type(dialog).__name__, button.objectName())


_PROGRAM = """
import json, sys
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication, QDialog
from app.__main__ import configure_application
from app.controller import Controller
from app.texts import Translator
from app.core.settings import SettingsStore

application = QApplication([])
configure_application(application)
store = SettingsStore()
store.load()
controller = Controller(store, Translator())
window = controller.window
controller.start()

def report():
    for name in ("guide", "shortcuts", "about", "sweep"):
        window.menus.actions[name].trigger()
    start = window.run_bar.start
    corner = start.mapToGlobal(start.rect().bottomRight())
    screen = application.primaryScreen().availableGeometry()
    print(json.dumps({
        "fits": {type(widget).__name__: widget.width() <= screen.width()
                 and widget.height() <= screen.height()
                 for widget in (window, *window.findChildren(QDialog))},
        "start": screen.contains(corner),
        "size": [window.width(), window.height()],
    }), flush=True)
    window.resize(1280, 800)  # the saved size is that of a larger screen
    controller._close()
    application.quit()

window.first_painted.connect(lambda: QTimer.singleShot(1500, report))
application.exec()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the colon of a drive separates parameters of a Qt platform")
def test_the_program_and_its_dialogs_open_within_a_small_screen(home: Path, tmp_path: Path) -> None:
    screen = {"name": "small", "x": 0, "y": 0, "width": 911, "height": 464, "logicalDpi": 96, "dpr": 1}
    file = tmp_path / "screen.json"
    file.write_text(json.dumps({"screens": [screen]}), encoding="utf-8")
    environment = {**os.environ, "QT_QPA_PLATFORM": f"offscreen:configfile={file}"}
    for _ in range(2):  # the second one restores the geometry of the first
        result = subprocess.run(
            [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, encoding="utf-8", timeout=60
        )
        assert result.stdout, result.stderr
        report = json.loads(result.stdout)
        assert len(report["fits"]) == 1 + len(DIALOGS)
        assert all(report["fits"].values()), report
        assert report["start"], report
