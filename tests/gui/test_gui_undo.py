"""Undo and redo in the form, and wrong values told where they are typed."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLineEdit, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.pages.setup.all_settings import AllSettingsPage
from app.pages.setup.form import CONFLICTING_KNOBS
from app.pages.setup.knob_field import KnobField
from tests.gui.conftest import MakeWindow
from trainer_core import presets
from trainer_core.config import knobs

CTRL = Qt.KeyboardModifier.ControlModifier


def ready(qtbot: QtBot, controller: Controller) -> Controller:
    """Keys reach an active window only."""
    controller.window.activateWindow()
    qtbot.waitUntil(controller.window.isActiveWindow)
    return controller


def field_of(controller: Controller, name: str) -> KnobField:
    return next(field for field in controller.window.setup.fields if field.knob.name == name)


def type_into(qtbot: QtBot, editor: QWidget, text: str) -> QLineEdit:
    assert isinstance(editor, QLineEdit)
    editor.setFocus()
    editor.selectAll()
    qtbot.keyClicks(editor, text)
    return editor


def all_settings(controller: Controller, qtbot: QtBot) -> AllSettingsPage:
    controller.window.show_page("settings")
    qtbot.waitUntil(lambda: controller.window.advanced.is_built, timeout=10_000)
    return controller.window.advanced


# --- undo ------------------------------------------------------------------------------------------------


def test_a_typed_number_is_one_step_and_keys_take_it_back_and_bring_it_back(
    make_window: MakeWindow, qtbot: QtBot
) -> None:
    controller = ready(qtbot, make_window())
    width = type_into(qtbot, field_of(controller, "hidden_dim").editor, "256")
    layers = type_into(qtbot, field_of(controller, "n_layers").editor, "12")
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


def test_a_field_that_was_left_begins_a_new_step(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = ready(qtbot, make_window())
    editor = type_into(qtbot, field_of(controller, "batch_size").editor, "8")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    type_into(qtbot, editor, "32")
    controller.form.undo()
    assert editor.text() == "8"


def test_ctrl_z_in_the_name_takes_back_the_name(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = ready(qtbot, make_window())
    name = type_into(qtbot, controller.window.setup.run_name, "first")
    qtbot.keyClick(name, Qt.Key.Key_Z, CTRL)
    assert (name.text(), controller.form.run_name) == ("", "")
    qtbot.keyClick(name, Qt.Key.Key_Y, CTRL)
    assert (name.text(), controller.form.run_name) == ("first", "first")


def test_the_menu_says_what_is_taken_back(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    undo, redo = (controller.window.menus.actions[name] for name in ("undo", "redo"))
    assert (undo.text(), undo.isEnabled()) == ("Undo", False)  # what was restored at the start is no step
    controller.form.set_text("batch_size", "8")
    assert undo.text() == "Undo: Batch size"
    controller.form.choose_preset(presets.load("cpu"))
    assert undo.text() == "Undo: preset"
    undo.trigger()
    assert controller.form.changes() == {"batch_size": 8}
    assert redo.text() == "Redo: preset"
    controller.set_language("zh")
    assert (undo.text(), redo.text()) == ("撤销：批大小", "重做：预设")


def test_preset_data_name_and_settings_come_back_together(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    form, setup = controller.form, controller.window.setup
    qtbot.keyClicks(setup.run_name, "mine")
    form.add_data(["D:/一.txt"])
    form.set_text("batch_size", "3")
    form.choose_preset(presets.load("gpu"))
    assert setup.presets.combo_box.currentText() == "GPU"
    form.undo()
    assert setup.presets.combo_box.currentText() == "Quick start"
    assert form.changes() == {"batch_size": 3}
    form.undo()
    form.undo()
    assert setup.data.list.item(0).text() == "Python standard library (built in)"
    assert setup.run_name.text() == "mine"
    form.undo()
    assert setup.run_name.text() == ""
    for _ in range(4):
        form.redo()
    assert (form.preset.name if form.preset else "", form.data, form.run_name) == ("gpu", ["D:/一.txt"], "mine")


def test_resetting_all_settings_can_be_undone(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    advanced = all_settings(controller, qtbot)
    reset = controller.window.findChild(QPushButton, "resetAll")
    assert reset is not None
    assert not reset.isEnabled()
    controller.form.set_values({"batch_size": 8, "seed": 5})
    qtbot.mouseClick(reset, Qt.MouseButton.LeftButton)
    assert controller.form.changes() == {}
    controller.window.menus.actions["undo"].trigger()
    assert controller.form.changes() == {"batch_size": 8, "seed": 5}
    advanced.only_changed.setChecked(True)
    shown = [field.knob.name for field in advanced.fields if not field.isHidden()]
    assert shown == ["batch_size", "seed"]
    controller.form.reset("seed")  # and goes from the list
    assert [field.knob.name for field in advanced.fields if not field.isHidden()] == ["batch_size"]


# --- what is wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "typed", "told"),
    [
        ("n_layers", "2.5", "2.5 is not a whole number."),
        ("n_layers", "many", "“many” is not a number."),
        ("max_seq_len", "1,024", "Without separators: 1024."),
        ("max_seq_len", "512 tokens", "Only the number: it counts tokens."),
        ("learning_rate", "5%", "Only the number, without a unit."),
        ("learning_rate", "99", "Allowed: a number above 0, at most 10"),
    ],
)
def test_a_field_says_what_is_wrong_with_what_is_typed(
    make_window: MakeWindow, qtbot: QtBot, name: str, typed: str, told: str
) -> None:
    controller = make_window()
    field = field_of(controller, name)
    type_into(qtbot, field.editor, typed)
    assert field.error_text.startswith(told)
    assert "Allowed" in field.error_text
    assert field.editor.property("wrong")
    assert not controller.window.run_bar.start.isEnabled()


def test_settings_that_do_not_fit_together_are_told_at_the_one_that_was_changed(
    make_window: MakeWindow, qtbot: QtBot
) -> None:
    controller = make_window()
    advanced = all_settings(controller, qtbot)
    heads = next(field for field in advanced.fields if field.knob.name == "n_heads")
    width = field_of(controller, "hidden_dim")
    type_into(qtbot, heads.editor, "7")
    assert "7 attention heads" in heads.error_text
    assert width.error_text == ""  # it is only marked
    assert width.editor.property("wrong")
    type_into(qtbot, width.editor, "140")
    assert heads.error_text == ""
    assert not width.editor.property("wrong")
    assert controller.window.run_bar.start.isEnabled()


def test_everything_that_settings_can_refuse_together_has_its_fields() -> None:
    import inspect
    import re

    from trainer_core import config

    codes = set(re.findall(r'TraindeckError\("(config\.\w+)"', inspect.getsource(config.check_combinations)))
    assert codes == set(CONFLICTING_KNOBS)
    assert {name for names in CONFLICTING_KNOBS.values() for name in names} <= set(knobs())


# --- what settings do ------------------------------------------------------------------------------------


def test_a_field_says_what_it_does_to_memory_and_speed(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    short = field_of(controller, "batch_size")
    assert "Higher: more memory, faster." in short.editor.toolTip()
    assert "Higher: more memory, faster." in short.editor.accessibleDescription()
    advanced = all_settings(controller, qtbot)
    full = next(field for field in advanced.fields if field.knob.name == "tie_embeddings")
    assert full.effect_text.startswith("On: less memory.")
    controller.set_language("zh")
    assert full.effect_text.startswith("开启：占用更少内存。")


@pytest.mark.parametrize("needle", ["less memory", "占用更少内存"])
def test_the_search_finds_what_settings_do(make_window: MakeWindow, qtbot: QtBot, needle: str) -> None:
    advanced = all_settings(make_window(), qtbot)
    advanced.search.setText(needle)
    shown = [field.knob.name for field in advanced.fields if not field.isHidden()]
    assert {"activation_checkpointing", "chunked_loss", "low_memory"} <= set(shown)
    assert "batch_size" not in shown
    assert len(shown) < 15
    advanced.search.setText("memory")
    assert "seed" not in [field.knob.name for field in advanced.fields if not field.isHidden()]
