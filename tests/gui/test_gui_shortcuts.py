"""Shortcuts: unique, listed, and with the effect of their menu entries."""

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
from tests.gui.conftest import MakeWindow, activate, wait_for_state


def active_window(qtbot: QtBot, controller: Controller) -> MainWindow:
    activate(qtbot, controller.window)
    return controller.window


def window_shortcuts(window: MainWindow) -> list[tuple[str, str]]:
    """(keys, name) of each shortcut that is active in the whole window."""
    window_contexts = (Qt.ShortcutContext.WindowShortcut, Qt.ShortcutContext.ApplicationShortcut)
    shortcuts = [
        (keys.toString(), action.objectName() or action.text())
        for action in window.findChildren(QAction)
        if action.shortcutContext() in window_contexts
        for keys in action.shortcuts()
    ]
    for shortcut in window.findChildren(QShortcut):
        if shortcut.context() in window_contexts:
            shortcuts += [(keys.toString(), "a shortcut") for keys in shortcut.keys()]  # noqa: SIM118 - no dictionary
    return shortcuts


def test_shortcuts_are_unique(make_window: MakeWindow, qtbot: QtBot) -> None:
    window = make_window().window
    for page in window.pages:
        window.show_page(page)
        qtbot.wait(10)
    shortcuts = window_shortcuts(window)
    assert len(shortcuts) > 20
    counts = Counter(keys for keys, _ in shortcuts)
    assert [(keys, name) for keys, name in shortcuts if counts[keys] > 1] == []


def test_every_menu_entry_has_a_shortcut_except_single_languages_and_themes(make_window: MakeWindow) -> None:
    menus = make_window().window.menus
    names = [action.objectName() for _, action in menus.actions_with_titles() if not action.shortcuts()]
    assert [name for name in names if not name.startswith(("language_", "theme_"))] == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_shortcut_dialog_lists_all_actions(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    controller = make_window(language=language)
    window = active_window(qtbot, controller)
    qtbot.keyClick(window, Qt.Key.Key_F1)
    dialog = window.findChild(QDialog, "shortcuts")
    assert dialog is not None
    browser = dialog.findChild(QTextBrowser)
    assert browser is not None
    text = browser.toPlainText()
    for _, action in window.menus.actions_with_titles():
        assert action.text()
        for keys in action.shortcuts():
            assert action.iconText() in text  # “Undo” without the name of the change
            assert keys.toString(QKeySequence.SequenceFormat.NativeText) in text
    assert "&" not in text
    dialog.close()


def test_a_run_is_controlled_by_shortcuts(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("echo")
    window, actions = active_window(qtbot, controller), controller.window.menus.actions

    def enabled_actions() -> list[str]:
        names = ("start", "check", "pause", "resume", "stop", "save", "sample", "run_folder")
        return [name for name in names if actions[name].isEnabled()]

    assert enabled_actions() == ["start", "check"]
    qtbot.keyClick(window, Qt.Key.Key_F5)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    qtbot.waitUntil(actions["sample"].isEnabled)
    assert enabled_actions() == ["pause", "stop", "save", "sample", "run_folder"]
    qtbot.keyClick(window, Qt.Key.Key_S, Qt.KeyboardModifier.ControlModifier)
    qtbot.keyClick(window, Qt.Key.Key_F7)
    wait_for_state(qtbot, controller, RunState.PAUSED)
    assert not {"pause", "save"} & {*enabled_actions()}
    assert "resume" in enabled_actions()
    qtbot.keyClick(window, Qt.Key.Key_F8)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    qtbot.keyClick(window, Qt.Key.Key_F5, Qt.KeyboardModifier.ShiftModifier)
    wait_for_state(qtbot, controller, RunState.STOPPED)


def test_ctrl_enter_starts_a_run(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("ok")
    window = active_window(qtbot, controller)
    window.setup.run_name.setFocus()
    qtbot.keyClick(window.setup.run_name, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    wait_for_state(qtbot, controller, RunState.FINISHED)


def test_shortcuts_of_pages_search_theme_language_and_full_screen(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    window = active_window(qtbot, controller)
    ctrl = Qt.KeyboardModifier.ControlModifier
    ctrl_shift = ctrl | Qt.KeyboardModifier.ShiftModifier
    for number, name in enumerate(window.pages, 1):
        qtbot.keyClick(window, Qt.Key(Qt.Key.Key_0.value + number % 10), ctrl)
        assert window.tabs.currentWidget() is window.pages[name]
    window.show_page("log")
    qtbot.keyClick(window, Qt.Key.Key_F, ctrl)
    assert window.log.search.hasFocus()
    window.show_page("performance")  # has no search field
    qtbot.keyClick(window, Qt.Key.Key_F, ctrl)
    assert window.advanced.search.hasFocus()
    qtbot.keyClick(window, Qt.Key.Key_T, ctrl_shift)
    assert window.menus.actions["theme_dark"].isChecked()
    qtbot.keyClick(window, Qt.Key.Key_L, ctrl_shift)
    assert window.run_bar.start.text() == "开始"
    qtbot.keyClick(window, Qt.Key.Key_F11)
    qtbot.waitUntil(window.isFullScreen)
    assert window.menus.actions["full_screen"].isChecked()
    qtbot.keyClick(window, Qt.Key.Key_F11)
    qtbot.waitUntil(lambda: not window.isFullScreen())


def test_a_shortcut_copies_the_command_line(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    window = active_window(qtbot, controller)
    controller.form.set_run_name("my run")
    ctrl_shift = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    qtbot.keyClick(window, Qt.Key.Key_C, ctrl_shift)
    copied = shlex.split(QGuiApplication.clipboard().text())
    assert "train" in copied
    assert copied[copied.index("--run-dir") + 1].endswith("my run")


def test_shortcuts_of_tables_are_listed_with_their_pages(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    active_window(qtbot, controller)
    listed = {(title, action.text()) for title, action in controller.window.table_shortcuts()}
    assert {("Runs", "Rename"), ("Runs", "Delete…"), ("Runs", "Compare")} <= listed
    controller.window.menus.actions["shortcuts"].trigger()
    dialog = controller.window.findChild(QDialog, "shortcuts")
    assert dialog is not None
    browser = dialog.findChild(QTextBrowser)
    assert browser is not None
    assert "Rename" in browser.toPlainText()
