"""Undo and redo in the setup form."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from tests.gui.conftest import MakeWindow, activate, click
from tests.gui.setup_form import all_settings, main_field, type_into, visible_names
from trainer_core import presets

CTRL = Qt.KeyboardModifier.ControlModifier


def test_shortcuts_undo_and_redo_typed_numbers(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    activate(qtbot, controller.window)
    width = type_into(qtbot, main_field(controller, "hidden_dim"), "256")
    layers = type_into(qtbot, main_field(controller, "n_layers"), "12")
    assert controller.form.changes() == {"hidden_dim": 256, "n_layers": 12}
    qtbot.keyClick(layers, Qt.Key.Key_Z, CTRL)
    assert (width.text(), layers.text()) == ("256", "4")
    qtbot.keyClick(layers, Qt.Key.Key_Z, CTRL)
    assert (width.text(), layers.text()) == ("128", "4")
    assert not controller.window.menus.actions["undo"].isEnabled()
    qtbot.keyClick(layers, Qt.Key.Key_Y, CTRL)
    qtbot.keyClick(layers, Qt.Key.Key_Y, CTRL)
    assert controller.form.changes() == {"hidden_dim": 256, "n_layers": 12}
    assert not controller.window.menus.actions["redo"].isEnabled()


def test_each_committed_edit_of_a_field_is_an_undo_step(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    activate(qtbot, controller.window)
    editor = type_into(qtbot, main_field(controller, "batch_size"), "8")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    type_into(qtbot, editor, "32")
    controller.form.undo_stack.undo()
    assert editor.text() == "8"


def test_the_run_name_can_be_undone(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    activate(qtbot, controller.window)
    name = type_into(qtbot, controller.window.setup.run_name, "first")
    qtbot.keyClick(name, Qt.Key.Key_Z, CTRL)
    assert (name.text(), controller.form.run_name) == ("", "")
    qtbot.keyClick(name, Qt.Key.Key_Y, CTRL)
    assert (name.text(), controller.form.run_name) == ("first", "first")


def test_the_menu_names_the_change(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    undo, redo = (controller.window.menus.actions[name] for name in ("undo", "redo"))
    assert (undo.text(), undo.isEnabled()) == ("Undo", False)  # restoring the form is not an undo step
    controller.form.set_text("batch_size", "8")
    assert undo.text() == "Undo: Batch size"
    controller.form.choose_preset(presets.load("cpu"))
    assert undo.text() == "Undo: preset"
    undo.trigger()
    assert controller.form.changes() == {"batch_size": 8}
    assert redo.text() == "Redo: preset"
    controller.set_language("zh")
    assert (undo.text(), redo.text()) == ("撤销：批大小", "重做：预设")


def test_preset_data_name_and_settings_can_be_undone(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    form, setup = controller.form, controller.window.setup
    qtbot.keyClicks(setup.run_name, "mine")
    form.add_data(["D:/一.txt"])
    form.set_text("batch_size", "3")
    form.choose_preset(presets.load("gpu"))
    assert setup.presets.combo_box.currentText() == "GPU"
    form.undo_stack.undo()
    assert setup.presets.combo_box.currentText() == "Quick start"
    assert form.changes() == {"batch_size": 3}
    form.undo_stack.undo()
    form.undo_stack.undo()
    assert setup.data.list.item(0).text() == "Python standard library (built-in)"
    assert setup.run_name.text() == "mine"
    form.undo_stack.undo()
    assert setup.run_name.text() == ""
    for _ in range(4):
        form.undo_stack.redo()
    assert (form.preset.name, form.data, form.run_name) == ("gpu", ["D:/一.txt"], "mine")


def test_resetting_all_settings_can_be_undone(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    advanced = all_settings(controller, qtbot)
    reset = controller.window.findChild(QPushButton, "resetAll")
    assert reset is not None
    assert not reset.isEnabled()
    controller.form.set_values({"batch_size": 8, "seed": 5})
    click(qtbot, reset)
    assert controller.form.changes() == {}
    controller.window.menus.actions["undo"].trigger()
    assert controller.form.changes() == {"batch_size": 8, "seed": 5}
    advanced.only_changed.setChecked(True)
    assert visible_names(advanced) == ["batch_size", "seed"]
    controller.form.reset("seed")
    assert visible_names(advanced) == ["batch_size"]
