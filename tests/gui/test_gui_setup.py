"""Setting up a run: what is typed, dropped and chosen."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from PySide6.QtCore import QMimeData, QPoint, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QInputMethodEvent
from PySide6.QtWidgets import QApplication, QComboBox, QLabel, QLineEdit, QPlainTextEdit, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.pages.setup.all_settings import AllSettingsPage, section_of, sort_by_section
from app.pages.setup.form import form_knobs, format_value
from app.pages.setup.knob_field import KnobField
from tests.gui.conftest import MakeWindow
from trainer_core import presets
from trainer_core.config import KnobGroup, knobs


def main_field(controller: Controller, name: str) -> KnobField:
    return next(field for field in controller.window.setup.fields if field.knob.name == name)


def all_settings(controller: Controller, qtbot: QtBot) -> AllSettingsPage:
    """The page of all settings, with all its editors."""
    controller.window.show_page("settings")
    qtbot.waitUntil(lambda: controller.window.advanced.is_built)
    return controller.window.advanced


def type_into(qtbot: QtBot, field: KnobField, text: str) -> None:
    assert isinstance(field.editor, QLineEdit)
    field.editor.selectAll()
    type_text(qtbot, field.editor, text)


def type_text(qtbot: QtBot, editor: QWidget, text: str) -> None:
    """Keys for ASCII; what an input method commits for the rest (QTest aborts on such keys)."""
    if text.isascii():
        qtbot.keyClicks(editor, text)
        return
    event = QInputMethodEvent()
    event.setCommitString(text)
    QApplication.sendEvent(editor, event)


def test_the_first_start_proposes_the_quick_start(make_window: MakeWindow) -> None:
    window = make_window().window
    assert window.setup.data.list.item(0).text() == "Python standard library (built in)"
    assert window.run_bar.start.isEnabled()


def test_a_wrong_value_is_marked_where_it_is_typed_and_start_says_why(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    field = main_field(controller, "batch_size")
    type_into(qtbot, field, "0")
    assert "1 to 65,536" in field.error_text
    assert not controller.window.run_bar.start.isEnabled()
    assert "Batch size" in controller.window.run_bar.reason_label.text()
    type_into(qtbot, field, "8")
    assert field.error_text == ""
    assert controller.window.run_bar.start.isEnabled()
    assert controller.form.changes() == {"batch_size": 8}


def test_the_page_stays_where_it_is_while_a_wrong_value_is_typed(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    controller.window.resize(1280, 720)
    field = next(field for field in all_settings(controller, qtbot).fields if field.knob.name == "batch_size")
    before = controller.window.tabs.mapToGlobal(QPoint(0, 0))
    type_into(qtbot, field, "0")
    qtbot.waitUntil(controller.window.run_bar.show_reason_button.isVisible)
    assert controller.window.tabs.mapToGlobal(QPoint(0, 0)) == before


@pytest.mark.parametrize(("typed", "meant"), [("3e-4", 3e-4), ("０.０１", 0.01), (" 1e−3 ", 1e-3)])
def test_numbers_are_taken_as_people_type_them(make_window: MakeWindow, qtbot: QtBot, typed: str, meant: float) -> None:
    controller = make_window()
    type_into(qtbot, main_field(controller, "learning_rate"), typed)
    assert controller.form.changes() == {"learning_rate": meant}


def test_going_back_to_the_presets_value_is_no_change(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    field = main_field(controller, "n_layers")
    before = controller.form.text("n_layers")
    type_into(qtbot, field, "7")
    assert controller.form.is_changed("n_layers")
    type_into(qtbot, field, before)
    assert not controller.form.is_changed("n_layers")


def test_typed_epochs_replace_the_steps_of_the_preset(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    form = controller.form
    assert form.base_value("max_steps") == 400
    type_into(qtbot, main_field(controller, "max_epochs"), "3")
    assert form.value("max_steps") == 0
    type_into(qtbot, main_field(controller, "max_steps"), "50")
    type_into(qtbot, main_field(controller, "max_epochs"), "4")
    assert form.value("max_steps") == 50  # typed by the user, so it stays


def test_settings_that_do_not_fit_together_are_told(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    controller.form.set_text("n_heads", "7")
    assert not controller.window.run_bar.start.isEnabled()
    assert "7" in controller.window.run_bar.reason_label.text()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_unit_stands_beside_a_field_unless_its_label_says_it(
    make_window: MakeWindow, qtbot: QtBot, language: str
) -> None:
    fields = {field.knob.name: field for field in all_settings(make_window(language=language), qtbot).fields}
    units = {"batch_size": ("sequences", "条序列"), "eval_steps": ("steps", "步")}
    for name in ("max_epochs", "warmup_steps", "max_steps", "cpu_threads"):
        said = [label.text() for label in fields[name].findChildren(QLabel) if label.isVisibleTo(fields[name])]
        assert not {"epochs", "steps", "threads", "轮", "步", "线程"} & {*said}, said
    for name, unit in units.items():
        assert unit[language == "zh"] in [label.text() for label in fields[name].findChildren(QLabel)]


def test_knobs_of_one_kind_stand_together_below_the_others_of_their_group() -> None:
    order = sort_by_section(form_knobs())
    assert [knobs()[name].group for name in order] == sorted(
        (knobs()[name].group for name in order), key=list(get_args(KnobGroup)).index
    )
    sections = [section_of(name) for name in order]
    assert sections == sorted(sections, key=sections.index)  # none begins twice
    assert order.index("seed") < order.index("optimizer") < order.index("on_bad_step")
    assert sections[order.index("attention")] == "fast_paths"


def test_the_full_form_has_every_knob_and_agrees_with_the_short_one(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    qtbot.mouseClick(controller.window.findChild(QPushButton, "allSettings"), Qt.MouseButton.LeftButton)
    assert controller.window.tabs.currentWidget() is controller.window.pages["settings"]
    advanced = all_settings(controller, qtbot)
    assert sorted(field.knob.name for field in advanced.fields) == sorted(form_knobs())
    assert set(form_knobs()) == set(knobs()) - {"preset", "data"}
    full = next(field for field in advanced.fields if field.knob.name == "batch_size")
    type_into(qtbot, full, "12")
    short = main_field(controller, "batch_size").editor
    assert isinstance(short, QLineEdit)
    assert short.text() == "12"
    qtbot.mouseClick(full.reset, Qt.MouseButton.LeftButton)
    assert short.text() == format_value(controller.form.base_value("batch_size"))


def test_a_search_shows_its_first_hit_wherever_the_page_was(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    controller.window.show_page("settings")
    advanced = controller.window.advanced
    qtbot.waitUntil(lambda: advanced.is_built, timeout=10_000)
    bar = advanced._scroll.verticalScrollBar()
    qtbot.waitUntil(lambda: bar.maximum() > 1000)
    bar.setValue(bar.maximum())
    advanced.search.setText("a")
    assert bar.value() == 0


@pytest.mark.parametrize("needle", ["学习率", "learning rate", "--learning-rate"])
def test_the_search_finds_a_setting_in_either_language(make_window: MakeWindow, qtbot: QtBot, needle: str) -> None:
    advanced = all_settings(make_window(), qtbot)
    advanced.search.setText(needle)
    shown = [field.knob.name for field in advanced.fields if not field.isHidden()]
    assert "learning_rate" in shown
    assert "vocab_size" not in shown


def test_a_switch_a_choice_and_a_list_are_taken_too(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    editors = {field.knob.name: field.editor for field in all_settings(controller, qtbot).fields}
    choice, switch, lines = editors["lr_schedule"], editors["qk_norm"], editors["sample_prompts"]
    assert isinstance(choice, QComboBox)
    choice.setCurrentText("constant")
    qtbot.mouseClick(switch, Qt.MouseButton.LeftButton, pos=QPoint(8, switch.height() // 2))
    assert isinstance(lines, QPlainTextEdit)
    lines.selectAll()
    type_text(qtbot, lines, "从前")
    assert controller.form.changes() == {"lr_schedule": "constant", "qk_norm": False, "sample_prompts": ["从前"]}


def test_choices_are_worded_and_written_as_the_trainer_knows_them(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(language="zh")
    fields = {field.knob.name: field for field in all_settings(controller, qtbot).fields}
    field = fields["compile"]
    choice = field.editor
    assert isinstance(choice, QComboBox)
    assert [choice.itemText(place) for place in range(choice.count())] == ["自动", "开", "关"]
    choice.setFocus()
    qtbot.keyClick(choice, Qt.Key.Key_Down)
    assert controller.form.changes() == {"compile": "on"}
    assert (choice.currentText(), field.reset.text()) == ("开", "还原为 自动")
    controller.set_language("en")
    assert (choice.currentText(), field.reset.text()) == ("on", "Reset to auto")
    assert controller.form.changes() == {"compile": "on"}
    assert fields["attention"].matches("flash2")


def test_the_first_own_file_replaces_the_built_in_data(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    controller = make_window()
    first, second = tmp_path / "一.txt", tmp_path / "two & three.txt"
    drop(controller, first)
    drop(controller, second)
    assert controller.form.data == [str(first), str(second)]
    controller.window.setup.data.list.item(0).setSelected(True)
    qtbot.mouseClick(controller.window.findChild(QPushButton, "removeData"), Qt.MouseButton.LeftButton)
    assert controller.form.data == [str(second)]


def test_without_data_start_asks_for_some(make_window: MakeWindow) -> None:
    controller = make_window()
    controller.form.set_data([])
    assert not controller.window.run_bar.start.isEnabled()
    assert "file" in controller.window.run_bar.reason_label.text()


def test_another_preset_keeps_the_own_data_and_what_was_typed(make_window: MakeWindow, tmp_path: Path) -> None:
    controller = make_window()
    controller.form.add_data([str(tmp_path / "mine.txt")])
    controller.form.set_text("batch_size", "3")
    combo = controller.window.findChild(QComboBox, "preset")
    assert combo is not None
    combo.activated.emit(presets.names().index("cpu"))
    assert controller.form.preset is not None
    assert controller.form.preset.name == "cpu"
    assert controller.form.data == [str(tmp_path / "mine.txt")]
    assert controller.form.changes() == {"batch_size": 3}


def test_the_form_comes_back_at_the_next_start(make_window: MakeWindow, tmp_path: Path) -> None:
    first = make_window()
    first.form.choose_preset(presets.load("cpu"))
    first.form.add_data([str(tmp_path / "mine.txt")])
    first.form.set_text("batch_size", "3")
    first.window.close()
    second = make_window()
    assert second.form.preset is not None
    assert second.form.preset.name == "cpu"
    assert second.form.data == [str(tmp_path / "mine.txt")]
    assert second.form.changes() == {"batch_size": 3}


def drop(controller: Controller, *paths: Path) -> None:
    """Let files go over the window, as a file manager does."""
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    button, keys = Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    place, actions = QPoint(500, 400), Qt.DropAction.CopyAction | Qt.DropAction.MoveAction
    QApplication.sendEvent(controller.window, QDragEnterEvent(place, actions, mime, button, keys))
    QApplication.sendEvent(controller.window, QDropEvent(place.toPointF(), actions, mime, button, keys))


def test_what_is_searched_for_while_the_editors_are_still_made_is_not_taken_away(
    make_window: MakeWindow, qtbot: QtBot
) -> None:
    window = make_window().window
    window.show_page("settings")
    advanced = window.advanced
    assert not advanced.is_built
    advanced.reveal(advanced.fields[0].knob.name)
    advanced.search.setFocus()
    qtbot.keyClicks(advanced.search, "rate")
    assert not advanced.is_built
    qtbot.waitUntil(lambda: advanced.is_built)
    qtbot.wait(50)
    assert advanced.search.text() == "rate"
    assert window.focusWidget() is advanced.search
