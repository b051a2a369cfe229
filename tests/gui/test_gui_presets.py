"""Selecting another preset: changed settings keep their values, a notice names them, and a button resets them."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.pages.setup.form import format_value
from tests.gui.conftest import MakeWindow, activate, click
from tests.gui.setup_form import description, main_field, type_into
from trainer_core import presets


def select_preset(qtbot: QtBot, controller: Controller, name: str) -> None:
    """Select a preset with the arrow keys, which adds an undo step for each preset on the way."""
    combo = controller.window.setup.presets.combo_box
    combo.setFocus()
    target = combo.findData(name)
    while combo.currentIndex() != target:
        qtbot.keyClick(combo, Qt.Key.Key_Down if combo.currentIndex() < target else Qt.Key.Key_Up)


def value_of(preset: str, knob: str) -> str:
    return format_value(presets.load(preset).knobs[knob])


def test_changed_settings_are_kept_and_named(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    notice = controller.window.setup.kept_notice
    type_into(qtbot, main_field(controller, "batch_size"), "3")
    type_into(qtbot, main_field(controller, "learning_rate"), "0.005")
    assert not notice.isVisible()
    select_preset(qtbot, controller, "cpu")
    assert controller.form.preset.name == "cpu"
    assert controller.form.changes() == {"batch_size": 3, "learning_rate": 0.005}
    assert notice.isVisible()
    assert notice.text.text() == "Kept your changes: Batch size, Learning rate"
    assert controller.form.text("hidden_dim") == value_of(
        "cpu", "hidden_dim"
    )  # other settings have the values of the preset
    assert description(notice.reset) == notice.text.text()
    controller.set_language("zh")
    assert notice.text.text() == "已保留修改：批大小、学习率"
    controller.window.menus.actions["reset_all"].trigger()
    assert controller.form.changes() == {}
    assert not notice.isVisible()


def test_without_changes_there_is_no_notice(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    select_preset(qtbot, controller, "cpu")
    assert not controller.window.setup.kept_notice.isVisible()
    assert controller.form.changes() == {}


@pytest.mark.parametrize("by_keyboard", [False, True])
def test_the_notice_resets_the_kept_settings_only(make_window: MakeWindow, qtbot: QtBot, *, by_keyboard: bool) -> None:
    controller = make_window()
    activate(qtbot, controller.window)
    type_into(qtbot, main_field(controller, "batch_size"), "3")
    select_preset(qtbot, controller, "cpu")
    type_into(qtbot, main_field(controller, "n_layers"), "5")  # after the preset was selected
    notice = controller.window.setup.kept_notice
    if by_keyboard:
        notice.reset.setFocus(Qt.FocusReason.TabFocusReason)
        qtbot.keyClick(notice.reset, Qt.Key.Key_Space)
        assert QApplication.focusWidget() is controller.window.setup.presets.combo_box
    else:
        click(qtbot, notice.reset)
    assert controller.form.changes() == {"n_layers": 5}
    assert controller.form.text("batch_size") == format_value(controller.form.base_value("batch_size"))
    assert not notice.isVisible()
    controller.form.undo_stack.undo()
    assert controller.form.changes() == {"batch_size": 3, "n_layers": 5}


def test_dismissing_the_notice_keeps_the_changes(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    type_into(qtbot, main_field(controller, "batch_size"), "3")
    select_preset(qtbot, controller, "cpu")
    undo_text = controller.form.undo_stack.undoText()
    click(qtbot, controller.window.setup.kept_notice.dismiss)
    assert not controller.window.setup.kept_notice.isVisible()
    assert controller.form.changes() == {"batch_size": 3}
    assert controller.form.undo_stack.undoText() == undo_text


def test_a_value_equal_to_one_preset_is_a_change_of_the_next_preset(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    same = value_of("cpu", "batch_size")
    assert same != controller.form.text("batch_size")
    type_into(qtbot, main_field(controller, "batch_size"), same)
    select_preset(qtbot, controller, "cpu")
    assert not controller.form.is_changed("batch_size")
    assert not controller.window.setup.kept_notice.isVisible()
    select_preset(qtbot, controller, "quickstart")
    assert controller.form.text("batch_size") == same
    assert controller.form.changes() == {"batch_size": int(same)}
    assert "Batch size" in controller.window.setup.kept_notice.text.text()


def test_a_kept_invalid_value_is_marked(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    field = main_field(controller, "batch_size")
    type_into(qtbot, field, "0")
    select_preset(qtbot, controller, "cpu")
    assert "Allowed" in field.error.text()
    assert not controller.window.run_bar.start.isEnabled()
    click(qtbot, controller.window.setup.kept_notice.reset)
    assert field.error.text() == ""


def test_the_recommended_preset_keeps_changes(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    page = controller.welcome_page
    qtbot.waitUntil(page.use_preset_button.isEnabled, timeout=20_000)
    type_into(qtbot, main_field(controller, "batch_size"), "3")
    click(qtbot, page.use_preset_button)
    assert controller.form.changes() == {"batch_size": 3}
    assert controller.window.setup.kept_notice.isVisible()


def test_added_built_in_data_is_kept(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    controller.form.add_data(["builtin:tasks"])
    select_preset(qtbot, controller, "cpu")
    assert controller.form.data == ["builtin:python", "builtin:tasks"]


def test_the_command_line_contains_the_kept_values(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    controller = make_window()
    text = tmp_path / "mine.txt"
    text.write_text("text", encoding="utf-8")
    controller.form.add_data([str(text)])
    type_into(qtbot, main_field(controller, "batch_size"), "3")
    select_preset(qtbot, controller, "cpu")
    controller.copy_command("bash")
    copied = QApplication.clipboard().text()
    assert "--preset cpu" in copied
    assert "--batch-size 3" in copied
