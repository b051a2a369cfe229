"""Wrong values are marked as they are typed: at every field of the form, with what is allowed, in both languages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QComboBox, QLineEdit, QPlainTextEdit
from pytestqt.qtbot import QtBot

from app.views.setup.form import as_text, form_knobs
from app.views.setup.knob_field import KnobField
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
        yield as_text(knob.minimum if knob.minimum_open else knob.minimum - 1)
    if knob.maximum is not None:
        yield as_text(knob.maximum if knob.maximum_open else knob.maximum + 1)
    if knob.shape:
        yield "x"
    if knob.name == "pause_between":
        yield "25:99"


def right_values(knob: Knob) -> Iterator[str]:
    """As far as one may go."""
    if knob.minimum is not None and not knob.minimum_open:
        yield as_text(knob.minimum)
    if knob.maximum is not None and not knob.maximum_open:
        yield as_text(knob.maximum)


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
            assert controller._blocked(), what
            assert not says_too_little(field.knob, field.error_text, language), what
        controller.form.reset(name)
        for text in right_values(field.knob):
            controller.form.set_text(name, text)
            assert controller.form.is_valid(name), (name, text)
        controller.form.reset(name)
        assert (field.error_text, bool(field.editor.property("wrong"))) == ("", False), name


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
    assert field.editor.property("wrong")
    assert "There is no tokenizer" in controller._blocked()
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")  # what is missing may come
    qtbot.waitUntil(lambda: not controller._blocked(), timeout=10_000)
    assert (field.error_text, bool(field.editor.property("wrong"))) == ("", False)
    type_into(qtbot, field, str(folder / "gone.json"))
    qtbot.waitUntil(lambda: field.error_text != "", timeout=10_000)
    field.reset.click()
    assert (field.error_text, controller._blocked()) == ("", "")
