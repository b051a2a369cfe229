"""Keys for everything: none twice, all listed, and each does what its entry in the menus says."""

from __future__ import annotations

import shlex
from collections import Counter

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import QDialog, QTextBrowser
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from app.window.main_window import MainWindow
from tests.gui.conftest import MakeWindow


def ready(qtbot: QtBot, controller: Controller) -> MainWindow:
    """The window as a person has it before the keyboard: keys reach an active window only."""
    window = controller.window
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    return window


def keys_of(window: MainWindow) -> list[tuple[str, str]]:
    """(keys, whose) of every action and shortcut that works anywhere in the window."""
    everywhere = (Qt.ShortcutContext.WindowShortcut, Qt.ShortcutContext.ApplicationShortcut)
    found = [
        (keys.toString(), action.objectName() or action.text())
        for action in window.findChildren(QAction)
        if action.shortcutContext() in everywhere
        for keys in action.shortcuts()
    ]
    for shortcut in window.findChildren(QShortcut):
        if shortcut.context() in everywhere:
            found += [(keys.toString(), "a shortcut") for keys in shortcut.keys()]  # noqa: SIM118 - no dictionary
    return found


def test_no_keys_mean_two_things(make_window: MakeWindow, qtbot: QtBot) -> None:
    window = make_window().window
    for page in window.pages:
        window.show_page(page)
        qtbot.wait(10)
    found = keys_of(window)
    assert len(found) > 20
    twice = {keys for keys, times in Counter(keys for keys, _ in found).items() if times > 1}
    assert not twice, [pair for pair in found if pair[0] in twice]


def test_every_entry_of_the_menus_can_be_had_by_keys_or_stands_beside_one_that_can(make_window: MakeWindow) -> None:
    """Single languages and themes are reached by the entry that goes to the next one."""
    menus = make_window().window.menus
    choices = ("language_", "theme_")
    without = [action.objectName() for _, action in menus.actions_with_titles() if not action.shortcuts()]
    assert [name for name in without if not name.startswith(choices)] == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_list_of_shortcuts_is_made_of_the_actions(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    controller = make_window(language=language)
    window = ready(qtbot, controller)
    qtbot.keyClick(window, Qt.Key.Key_F1)
    dialog = window.findChild(QDialog, "shortcuts")
    assert dialog is not None
    browser = dialog.findChild(QTextBrowser)
    assert browser is not None
    shown = browser.toPlainText()
    for _, action in window.menus.actions_with_titles():
        assert action.text()
        for keys in action.shortcuts():
            assert action.iconText() in shown  # “Undo”, whatever it would undo just now
            assert keys.toString(QKeySequence.SequenceFormat.NativeText) in shown
    assert "&" not in shown
    dialog.close()


def test_a_run_is_trained_with_keys_alone(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("echo")
    window, machine, actions = ready(qtbot, controller), controller.active_run.machine, controller.window.menus.actions

    def possible(*names: str) -> dict[str, bool]:
        return {name: actions[name].isEnabled() for name in names}

    every = ("start", "check", "pause", "resume", "stop", "save", "sample", "run_folder")
    before = possible(*every)
    assert [name for name in every if before[name]] == ["start", "check"]
    qtbot.keyClick(window, Qt.Key.Key_F5)
    qtbot.waitUntil(lambda: machine.state is RunState.TRAINING, timeout=20_000)
    qtbot.waitUntil(actions["sample"].isEnabled)
    during = possible(*every)
    assert [name for name in every if during[name]] == ["pause", "stop", "save", "sample", "run_folder"]
    qtbot.keyClick(window, Qt.Key.Key_S, Qt.KeyboardModifier.ControlModifier)
    qtbot.keyClick(window, Qt.Key.Key_F7)
    qtbot.waitUntil(lambda: machine.state is RunState.PAUSED)
    assert possible("pause", "resume", "save") == {"pause": False, "resume": True, "save": False}
    qtbot.keyClick(window, Qt.Key.Key_F8)
    qtbot.waitUntil(lambda: machine.state is RunState.TRAINING)
    qtbot.keyClick(window, Qt.Key.Key_F5, Qt.KeyboardModifier.ShiftModifier)
    qtbot.waitUntil(lambda: machine.state is RunState.STOPPED, timeout=20_000)


def test_control_and_enter_starts_too(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("ok")
    window = ready(qtbot, controller)
    window.setup.run_name.setFocus()
    qtbot.keyClick(window.setup.run_name, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.FINISHED, timeout=20_000)


def test_keys_search_switch_pages_and_change_looks(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    window = ready(qtbot, controller)
    control = Qt.KeyboardModifier.ControlModifier
    shift = control | Qt.KeyboardModifier.ShiftModifier
    for place, name in enumerate(window.pages, 1):
        qtbot.keyClick(window, Qt.Key(Qt.Key.Key_0.value + place), control)
        assert window.tabs.currentWidget() is window.pages[name]
    window.show_page("log")
    qtbot.keyClick(window, Qt.Key.Key_F, control)
    assert window.log.search.hasFocus()
    window.show_page("performance")  # has no search of its own
    qtbot.keyClick(window, Qt.Key.Key_F, control)
    assert window.advanced.search.hasFocus()
    qtbot.keyClick(window, Qt.Key.Key_T, shift)
    assert window.menus.actions["theme_dark"].isChecked()
    qtbot.keyClick(window, Qt.Key.Key_L, shift)
    assert window.run_bar.start.text() == "开始"
    qtbot.keyClick(window, Qt.Key.Key_F11)
    qtbot.waitUntil(window.isFullScreen)
    assert window.menus.actions["full_screen"].isChecked()
    qtbot.keyClick(window, Qt.Key.Key_F11)
    qtbot.waitUntil(lambda: not window.isFullScreen())


def test_keys_copy_the_command_line(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    window = ready(qtbot, controller)
    controller.form.set_run_name("my run")
    shift = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    qtbot.keyClick(window, Qt.Key.Key_C, shift)
    copied = shlex.split(QGuiApplication.clipboard().text())
    assert "train" in copied
    assert copied[copied.index("--run-dir") + 1].endswith("my run")


def test_keys_of_tables_are_listed_with_their_pages(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    ready(qtbot, controller)
    listed = {(title, action.text()) for title, action in controller.window.table_shortcuts()}
    assert {("Runs", "Rename"), ("Runs", "Delete…"), ("Runs", "Compare")} <= listed
    controller.window.menus.actions["shortcuts"].trigger()
    shown = controller.window.findChild(QDialog, "shortcuts")
    assert shown is not None
    text = shown.findChild(QTextBrowser)
    assert text is not None
    assert "Rename" in text.toPlainText()
