"""Setup panel and page of all settings: values, search, data, restored state."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QComboBox, QLabel, QPlainTextEdit, QPushButton
from pytestqt.qtbot import QtBot

from app.pages.setup.form import form_knobs, format_value
from tests.gui.conftest import LEFT, MakeWindow, click
from tests.gui.setup_form import (
    all_fields,
    all_settings,
    drop,
    main_field,
    mime_data,
    type_into,
    type_text,
    visible_names,
)
from trainer_core import presets
from trainer_core.config import knobs


def test_the_first_start_selects_the_quick_start_preset(make_window: MakeWindow) -> None:
    window = make_window().window
    assert window.setup.data.list.item(0).text() == "Python standard library (built-in)"
    assert window.run_bar.start.isEnabled()


def test_an_invalid_value_disables_start_without_moving_the_layout(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    window, field = controller.window, main_field(controller, "batch_size")
    before = window.tabs.mapToGlobal(QPoint(0, 0))
    type_into(qtbot, field, "0")
    assert "<= 65536" in field.error.text()
    assert not window.run_bar.start.isEnabled()
    assert "Batch size" in window.run_bar.reason_label.text()
    qtbot.waitUntil(window.run_bar.show_reason_button.isVisible)
    assert window.tabs.mapToGlobal(QPoint(0, 0)) == before
    type_into(qtbot, field, "8")
    assert field.error.text() == ""
    assert window.run_bar.start.isEnabled()
    assert controller.form.changes() == {"batch_size": 8}


def test_numbers_are_accepted_in_common_notations(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    for typed, value in (("3e-4", 3e-4), ("０.０１", 0.01), (" 1e−3 ", 1e-3)):
        type_into(qtbot, main_field(controller, "learning_rate"), typed)
        assert controller.form.changes() == {"learning_rate": value}


def test_the_value_of_the_preset_is_not_a_change(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    field, before = main_field(controller, "n_layers"), controller.form.text("n_layers")
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
    assert form.value("max_steps") == 50  # typed by the user


def test_rewards_are_shown_for_the_goal_that_earns_them(make_window: MakeWindow) -> None:
    controller = make_window()
    rewards = main_field(controller, "rewards")
    assert rewards.isHidden()
    goal = main_field(controller, "objective").editor
    goal.setCurrentIndex(goal.findText("Earn a reward (GRPO)"))
    assert not rewards.isHidden()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_unit_is_shown_unless_the_label_contains_it(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    fields = all_fields(make_window(language=language), qtbot)
    units = {"batch_size": ("sequences", "条序列"), "eval_steps": ("steps", "步")}
    for name in ("max_epochs", "warmup_steps", "max_steps", "cpu_threads"):
        texts = [label.text() for label in fields[name].findChildren(QLabel) if label.isVisibleTo(fields[name])]
        assert not {"epochs", "steps", "threads", "轮", "步", "线程"} & {*texts}, texts
    for name, unit in units.items():
        assert unit[language == "zh"] in [label.text() for label in fields[name].findChildren(QLabel)]


def test_the_page_of_all_settings_has_every_setting_and_follows_the_panel(
    make_window: MakeWindow, qtbot: QtBot
) -> None:
    controller = make_window()
    qtbot.mouseClick(controller.window.findChild(QPushButton, "allSettings"), LEFT)
    assert controller.window.tabs.currentWidget() is controller.window.pages["settings"]
    fields = all_fields(controller, qtbot)
    assert set(fields) == set(form_knobs()) == set(knobs()) - {"preset", "data"}
    type_into(qtbot, fields["batch_size"], "12")
    assert main_field(controller, "batch_size").editor.property("text") == "12"
    click(qtbot, fields["batch_size"].reset)
    base = format_value(controller.form.base_value("batch_size"))
    assert main_field(controller, "batch_size").editor.property("text") == base


def test_the_search_finds_names_and_effects_in_both_languages(make_window: MakeWindow, qtbot: QtBot) -> None:
    advanced = all_settings(make_window(), qtbot)
    for text in ("学习率", "learning rate", "--learning-rate"):
        advanced.search.setText(text)
        assert "learning_rate" in visible_names(advanced), text
        assert "vocab_size" not in visible_names(advanced), text
    for text in ("less memory", "占用更少内存"):
        advanced.search.setText(text)
        assert {"activation_checkpointing", "chunked_loss", "low_memory"} <= set(visible_names(advanced)), text
        assert "batch_size" not in visible_names(advanced), text
        assert len(visible_names(advanced)) < 15, text
    advanced.search.setText("memory")
    assert "seed" not in visible_names(advanced)


def test_a_search_scrolls_to_its_first_match(make_window: MakeWindow, qtbot: QtBot) -> None:
    advanced = all_settings(make_window(), qtbot)
    bar = advanced._scroll.verticalScrollBar()
    qtbot.waitUntil(lambda: bar.maximum() > 1000)
    bar.setValue(bar.maximum())
    advanced.search.setText("a")
    assert bar.value() == 0


def test_check_boxes_choices_and_lists_set_values(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    editors = {name: field.editor for name, field in all_fields(controller, qtbot).items()}
    combo_box, check_box, text_edit = editors["lr_schedule"], editors["qk_norm"], editors["sample_prompts"]
    assert isinstance(combo_box, QComboBox)
    combo_box.setCurrentText("constant")
    qtbot.mouseClick(check_box, LEFT, pos=QPoint(8, check_box.height() // 2))
    assert isinstance(text_edit, QPlainTextEdit)
    text_edit.selectAll()
    type_text(qtbot, text_edit, "从前")
    assert controller.form.changes() == {"lr_schedule": "constant", "qk_norm": False, "sample_prompts": ["从前"]}


def test_choices_are_translated_but_not_their_values(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(language="zh")
    fields = all_fields(controller, qtbot)
    field = fields["compile"]
    combo_box = field.editor
    assert isinstance(combo_box, QComboBox)
    assert [combo_box.itemText(index) for index in range(combo_box.count())] == ["自动", "开", "关"]
    combo_box.setFocus()
    qtbot.keyClick(combo_box, Qt.Key.Key_Down)
    assert controller.form.changes() == {"compile": "on"}
    assert (combo_box.currentText(), field.reset.text()) == ("开", "还原为 自动")
    controller.set_language("en")
    assert (combo_box.currentText(), field.reset.text()) == ("on", "Reset to auto")
    assert controller.form.changes() == {"compile": "on"}
    assert fields["attention"].matches("flash2")


def test_a_field_shows_its_effect_on_memory_and_speed(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    field = main_field(controller, "batch_size")
    assert "Higher: more memory, faster." in field.editor.toolTip()
    assert "Higher: more memory, faster." in field.editor.accessibleDescription()
    detailed = all_fields(controller, qtbot)["tie_embeddings"]
    assert detailed.effect.text().startswith("On: less memory.")
    controller.set_language("zh")
    assert detailed.effect.text().startswith("开启：占用更少内存。")


def test_the_first_own_file_replaces_the_built_in_data(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    controller = make_window()
    first, second = tmp_path / "一.txt", tmp_path / "two & three.txt"
    drop(controller.window, mime_data(first))
    drop(controller.window, mime_data(second))
    assert controller.form.data == [str(first), str(second)]
    for expected in ([str(second)], []):
        controller.window.setup.data.list.item(0).setSelected(True)
        qtbot.mouseClick(controller.window.findChild(QPushButton, "removeData"), LEFT)
        assert controller.form.data == expected
    assert not controller.window.run_bar.start.isEnabled()
    assert "file" in controller.window.run_bar.reason_label.text()


def test_the_form_is_restored_at_the_next_start(make_window: MakeWindow, tmp_path: Path) -> None:
    first = make_window()
    first.form.choose_preset(presets.load("cpu"))
    first.form.add_data([str(tmp_path / "mine.txt")])
    first.form.set_text("batch_size", "3")
    first.window.close()
    second = make_window()
    assert second.form.preset.name == "cpu"
    assert second.form.data == [str(tmp_path / "mine.txt")]
    assert second.form.changes() == {"batch_size": 3}


def test_valid_changes_are_restored_beside_an_invalid_one(make_window: MakeWindow, qtbot: QtBot) -> None:
    first = make_window()
    type_into(qtbot, main_field(first, "learning_rate"), "0.0007")
    type_into(qtbot, main_field(first, "batch_size"), "")
    assert first.form.invalid_knobs == ["batch_size"]
    first.window.close()
    assert make_window().form.changes() == {"learning_rate": 0.0007}
