"""Wrong values are marked as they are typed: at every field of the form, with what is allowed, in both languages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QCheckBox, QComboBox, QLineEdit, QPlainTextEdit, QWidget
from pytestqt.qtbot import QtBot
from runs_page import add

from app.knob_texts import knob_help
from app.pages.queue.sweep_dialog import SweepDialog
from app.pages.setup.form import form_knobs, format_value
from app.pages.setup.knob_field import KnobField
from app.widgets import formatting
from tests.gui.conftest import MakeWindow
from tests.gui.test_gui_setup import all_settings, type_into
from trainer_core.config import Knob, knobs

NUMBERS = ("int", "float")
OPEN_LOW, OPEN_HIGH = {"en": "above", "zh": "大于"}, {"en": "below", "zh": "小于"}
WHOLE = {"en": "a whole number", "zh": "整数"}


def wrong_values(knob: Knob) -> Iterator[str]:
    """One of every way to be wrong that this knob has."""
    if knob.kind in NUMBERS:
        yield from ("x", "", "nan")
    if knob.kind == "int":
        yield "1.5"
    if knob.minimum is not None:
        yield format_value(knob.minimum if knob.minimum_open else knob.minimum - 1)
    if knob.maximum is not None:
        yield format_value(knob.maximum if knob.maximum_open else knob.maximum + 1)
    if knob.shape:
        yield "x"
    if knob.name == "pause_between":
        yield "25:99"


def right_values(knob: Knob) -> Iterator[str]:
    """As far as one may go."""
    if knob.minimum is not None and not knob.minimum_open:
        yield format_value(knob.minimum)
    if knob.maximum is not None and not knob.maximum_open:
        yield format_value(knob.maximum)


def empty(qtbot: QtBot, field: KnobField) -> None:
    assert isinstance(field.editor, QLineEdit)
    field.editor.selectAll()
    qtbot.keyClick(field.editor, Qt.Key.Key_Delete)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_field_marks_every_kind_of_wrong_value_and_says_what_is_allowed(
    make_window: MakeWindow, qtbot: QtBot, language: str
) -> None:
    controller = make_window(language=language)
    fields = {field.knob.name: field for field in all_settings(controller, qtbot).fields}
    assert set(fields) == set(form_knobs())
    for name, field in fields.items():
        for text in wrong_values(field.knob):
            if text:
                type_into(qtbot, field, text)
            else:
                empty(qtbot, field)
            what = (name, text, field.error_text)
            assert field.editor.property("wrong"), what
            assert controller._blocked_text(), what
            assert not says_too_little(field.knob, field.error_text, language), what
            assert description(field.editor).startswith(field.error_text), what
        controller.form.reset(name)
        for text in right_values(field.knob):
            controller.form.set_text(name, text)
            assert controller.form.is_valid(name), (name, text)
        controller.form.reset(name)
        assert (field.error_text, bool(field.editor.property("wrong"))) == ("", False), name
        help_ = formatting.replace_flags_with_labels(knob_help(field.knob))
        assert description(field.editor).startswith(help_), name


def description(widget: QWidget) -> str:
    """What a screen reader reads after the name."""
    return QAccessible.queryAccessibleInterface(widget).text(QAccessible.Text.Description)


def says_too_little(knob: Knob, said: str, language: str) -> bool:
    """Whether the sentence leaves out a bound, what kind of number is meant, or is not in the window's language."""
    given = re.sub(f"nan|mon-fri|{knob.shape or 'nan'}", "", said)  # what is typed so in any language
    if not said or (language == "zh" and re.search(r"[a-z]{2,}", given)):
        return True
    if knob.shape:
        return knob.shape not in said
    if knob.kind not in NUMBERS:
        return not said
    shown = [f"{bound:,}" if bound == int(bound) else f"{bound:g}" for bound in (knob.minimum, knob.maximum) if bound]
    bounds = all(bound.removesuffix(".0") in said for bound in shown)
    low = OPEN_LOW[language] in said or not knob.minimum_open
    high = OPEN_HIGH[language] in said or not knob.maximum_open
    return not (bounds and low and high and (WHOLE[language] in said or knob.kind == "float"))


def test_what_is_chosen_or_ticked_cannot_be_wrong(make_window: MakeWindow, qtbot: QtBot) -> None:
    fields = all_settings(make_window(), qtbot).fields
    kinds = {"bool": QCheckBox, "choice": QComboBox, "list": QPlainTextEdit}
    for field in fields:
        assert isinstance(field.editor, kinds.get(field.knob.kind, QLineEdit))
    assert not any(field.editor.isEditable() for field in fields if isinstance(field.editor, QComboBox))
    assert {name for name, knob in knobs().items() if knob.kind == "choice"} <= {field.knob.name for field in fields}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_conflict_is_described_at_every_field_that_it_is_about(
    make_window: MakeWindow, qtbot: QtBot, language: str
) -> None:
    controller = make_window(language=language)
    fields = {field.knob.name: field for field in all_settings(controller, qtbot).fields}
    before = description(fields["hidden_dim"].editor)
    type_into(qtbot, fields["n_heads"], "7")
    said = fields["n_heads"].error_text
    for name in ("n_heads", "hidden_dim"):
        assert description(fields[name].editor).startswith(said), name
    assert fields["hidden_dim"].error_text == ""  # it is shown once
    controller.form.reset("n_heads")
    assert description(fields["hidden_dim"].editor) == before


def test_choices_and_switches_describe_a_conflict_as_well(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    fields = {field.knob.name: field for field in all_settings(controller, qtbot).fields}
    controller.form.set_values({"qkv_bias": True, "qk_norm": True})
    for name in ("qkv_bias", "qk_norm"):
        conflict = controller.form.conflict()
        assert conflict is not None
        assert description(fields[name].editor).startswith(
            formatting.localized_message(conflict.code, conflict.params)
        ), name


def test_a_name_that_is_taken_and_missing_data_are_described_at_their_fields(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path, tmp_path: Path
) -> None:
    add(own_folders, "mine")
    controller = make_window()
    setup = controller.window.setup
    qtbot.waitUntil(lambda: bool(controller._history.runs), timeout=10_000)
    qtbot.keyClicks(setup.run_name, "mine")
    assert description(setup.run_name) == "There is already a run of this name"
    assert setup.run_name.property("wrong")
    qtbot.keyClicks(setup.run_name, "2")
    assert "already" not in description(setup.run_name)
    assert not setup.run_name.property("wrong")
    controller.form.set_data([str(tmp_path / "gone.txt")])
    qtbot.waitUntil(lambda: "Not found: gone.txt" in description(setup.data.list), timeout=10_000)
    controller.form.set_data(["builtin:python"])
    qtbot.waitUntil(lambda: description(setup.data.list) == "", timeout=10_000)


def test_a_sweep_describes_its_errors_at_their_fields(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    controller.window.menus.actions["sweep"].trigger()
    dialog = controller.window.findChild(SweepDialog)
    assert dialog is not None
    first, second = dialog.editors
    first.typed.selectAll()
    qtbot.keyClicks(first.typed, "-1")
    assert description(first.typed).startswith(first.error.text())
    assert first.error.text().startswith("“-1” does not fit.")
    first.typed.selectAll()
    qtbot.keyClicks(first.typed, "0.001")
    assert "does not fit" not in description(first.typed)
    choose(second.knob, second.names.index("learning_rate"))
    assert description(second.knob) == "Choose two different settings."
    choose(second.knob, second.names.index("qk_norm"))
    assert description(second.knob) == ""
    for check_box in second.check_boxes:
        qtbot.mouseClick(check_box, Qt.MouseButton.LeftButton, pos=QPoint(8, check_box.height() // 2))
    assert [description(check_box) for check_box in second.check_boxes] == [second.error.text()] * 2
    assert second.error.text()
    dialog.base.selectAll()
    qtbot.keyClick(dialog.base, Qt.Key.Key_Delete)
    assert description(dialog.base) == "Give the runs a name."


def choose(combo: QComboBox, index: int) -> None:
    combo.setCurrentIndex(index)
    combo.activated.emit(index)


def test_a_tokenizer_that_is_not_there_is_marked_while_its_path_is_typed(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    controller = make_window()
    fields = {field.knob.name: field for field in all_settings(controller, qtbot).fields}
    field = fields["tokenizer"]
    folder = tmp_path / "a b 模型"
    folder.mkdir()
    type_into(qtbot, field, str(folder))
    qtbot.waitUntil(lambda: "no tokenizer.json here" in field.error_text, timeout=10_000)
    assert description(field.editor).startswith(field.error_text)
    assert field.editor.property("wrong")
    assert "There is no tokenizer" in controller._blocked_text()
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")  # what is missing may come
    qtbot.waitUntil(lambda: not controller._blocked_text(), timeout=10_000)
    assert (field.error_text, bool(field.editor.property("wrong"))) == ("", False)
    type_into(qtbot, field, str(folder / "gone.json"))
    qtbot.waitUntil(lambda: field.error_text != "", timeout=10_000)
    field.reset.click()
    assert (field.error_text, controller._blocked_text()) == ("", "")
