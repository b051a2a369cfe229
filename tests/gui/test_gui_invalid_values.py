"""Invalid values are marked as they are typed, with the allowed values, in both languages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QComboBox, QLineEdit, QPlainTextEdit
from pytestqt.qtbot import QtBot

from app.knob_texts import knob_help
from app.pages.queue.sweep_dialog import SweepDialog
from app.pages.setup.form import CONFLICTING_KNOBS, form_knobs, format_value
from app.widgets import formatting
from tests.gui.conftest import MakeWindow
from tests.gui.runs_page import add_run
from tests.gui.setup_form import all_fields, description, main_field, type_into
from trainer_core import config
from trainer_core.config import Knob, knobs
from trainer_core.rewards import setting as reward_settings

NUMBER_KINDS = ("int", "float")
INTEGER_TEXT = {"en": "a whole number", "zh": "整数"}


def invalid_values(knob: Knob) -> Iterator[str]:
    """One value for each way to be invalid."""
    if knob.kind in NUMBER_KINDS:
        yield from ("x", "", "nan")
    if knob.kind == "int":
        yield "1.5"
    if knob.minimum is not None:
        yield format_value(knob.minimum if knob.minimum_open else knob.minimum - 1)
    if knob.maximum is not None:
        yield format_value(knob.maximum if knob.maximum_open else knob.maximum + 1)
    if knob.shape:
        yield "https://me:secret@host" if knob.name == "mlflow_tracking_uri" else "x"
    if knob.name == "pause_between":
        yield "25:99"


def limits(knob: Knob) -> Iterator[str]:
    """Smallest and largest allowed value."""
    if knob.minimum is not None and not knob.minimum_open:
        yield format_value(knob.minimum)
    if knob.maximum is not None and not knob.maximum_open:
        yield format_value(knob.maximum)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_field_marks_every_kind_of_invalid_value_with_the_allowed_values(
    make_window: MakeWindow, qtbot: QtBot, language: str
) -> None:
    controller = make_window(language=language)
    fields = all_fields(controller, qtbot)
    assert set(fields) == set(form_knobs())
    for name, field in fields.items():
        for text in invalid_values(field.knob):
            type_into(qtbot, field, text)
            context = (name, text, field.error.text())
            assert field.editor.property("wrong"), context
            assert controller._blocked_text(), context
            assert not is_incomplete(field.knob, field.error.text(), language), context
            assert description(field.editor).startswith(field.error.text()), context
        controller.form.reset(name)
        for text in limits(field.knob):
            controller.form.set_text(name, text)
            assert controller.form.is_valid(name), (name, text)
        controller.form.reset(name)
        assert (field.error.text(), bool(field.editor.property("wrong"))) == ("", False), name
        help_text = formatting.replace_flags_with_labels(knob_help(field.knob))
        assert description(field.editor).startswith(help_text), name


def is_incomplete(knob: Knob, error: str, language: str) -> bool:
    """Whether the error lacks a bound or the kind of number, or is not in the window's language."""
    translated = re.sub(f"nan|mon-fri|{re.escape(knob.shape) or 'nan'}", "", error)
    if not error or (language == "zh" and re.search(r"[a-z]{2,}", translated)):
        return True
    if knob.shape:  # some are translated
        return language == "en" and knob.shape not in error
    if knob.kind not in NUMBER_KINDS:
        return not error
    bounds = all(f"{bound:.15g}" in error or str(bound) in error for bound in (knob.minimum, knob.maximum) if bound)
    lower = "> " in error or not knob.minimum_open
    upper = "< " in error or not knob.maximum_open
    return not (bounds and lower and upper and (INTEGER_TEXT[language] in error or knob.kind == "float"))


def test_choices_and_check_boxes_have_no_invalid_values(make_window: MakeWindow, qtbot: QtBot) -> None:
    fields = all_fields(make_window(), qtbot).values()
    kinds = {"bool": QCheckBox, "choice": QComboBox, "list": QPlainTextEdit}
    for field in fields:
        assert isinstance(field.editor, kinds.get(field.knob.kind, QLineEdit))
    assert not any(field.editor.isEditable() for field in fields if isinstance(field.editor, QComboBox))
    assert {name for name, knob in knobs().items() if knob.kind == "choice"} <= {field.knob.name for field in fields}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_conflict_is_described_at_every_involved_field(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    controller = make_window(language=language)
    fields = all_fields(controller, qtbot)
    help_text = description(fields["hidden_dim"].editor)
    type_into(qtbot, fields["n_heads"], "7")
    error = fields["n_heads"].error.text()
    for name in ("n_heads", "hidden_dim"):
        assert description(fields[name].editor).startswith(error), name
    controller.form.reset("n_heads")
    assert description(fields["hidden_dim"].editor) == help_text


def test_choices_and_check_boxes_describe_a_conflict(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    fields = all_fields(controller, qtbot)
    controller.form.set_values({"qkv_bias": True, "qk_norm": True})
    for name in ("qkv_bias", "qk_norm"):
        assert controller.form.error(name), name
        assert description(fields[name].editor).startswith(controller.form.error(name)), name


def test_an_existing_run_name_and_missing_data_are_described_at_their_fields(
    make_window: MakeWindow, qtbot: QtBot, home: Path, tmp_path: Path
) -> None:
    add_run(home, "mine")
    controller = make_window()
    setup = controller.window.setup
    qtbot.waitUntil(lambda: bool(controller._history.runs), timeout=10_000)
    qtbot.keyClicks(setup.run_name, "mine")
    assert description(setup.run_name) == "A run with this name already exists"
    assert setup.run_name.property("wrong")
    qtbot.keyClicks(setup.run_name, "2")
    assert "already" not in description(setup.run_name)
    assert not setup.run_name.property("wrong")
    controller.form.set_data([str(tmp_path / "missing.txt")])
    qtbot.waitUntil(lambda: "Not found: missing.txt" in description(setup.data.list), timeout=10_000)
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
    assert first.error.text().startswith("Not allowed: “-1”.")
    first.typed.selectAll()
    qtbot.keyClicks(first.typed, "0.001")
    assert "does not fit" not in description(first.typed)
    select_item(second.knob, second.names.index("learning_rate"))
    assert description(second.knob) == "Choose two different settings."
    select_item(second.knob, second.names.index("qk_norm"))
    assert description(second.knob) == ""
    second.typed.selectAll()
    qtbot.keyClick(second.typed, Qt.Key.Key_Delete)
    assert description(second.typed) == second.error.text() == "Enter at least one value."
    dialog.base.selectAll()
    qtbot.keyClick(dialog.base, Qt.Key.Key_Delete)
    assert description(dialog.base) == "Enter a name for the runs."


def select_item(combo: QComboBox, index: int) -> None:
    combo.setCurrentIndex(index)
    combo.activated.emit(index)


def test_a_missing_tokenizer_is_marked_while_its_path_is_typed(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    controller = make_window()
    fields = all_fields(controller, qtbot)
    field = fields["tokenizer"]
    folder = tmp_path / "a b 模型"
    folder.mkdir()
    type_into(qtbot, field, str(folder))
    qtbot.waitUntil(lambda: "Tokenizer not found at this path" in field.error.text(), timeout=10_000)
    assert description(field.editor).startswith(field.error.text())
    assert field.editor.property("wrong")
    assert controller._blocked_text() == field.error.text()
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")  # checked again periodically
    qtbot.waitUntil(lambda: not controller._blocked_text(), timeout=10_000)
    assert (field.error.text(), bool(field.editor.property("wrong"))) == ("", False)
    type_into(qtbot, field, str(folder / "missing.json"))
    qtbot.waitUntil(lambda: field.error.text() != "", timeout=10_000)
    field.reset.click()
    assert (field.error.text(), controller._blocked_text()) == ("", "")


def test_an_error_explains_what_is_invalid(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    for name, typed, error in (
        ("n_layers", "2.5", "2.5 is not an integer."),
        ("n_layers", "many", "“many” is not a number."),
        ("max_seq_len", "1,024", "“1,024” is not a number."),
        ("learning_rate", "99", "Allowed: a number > 0 and <= 10"),
    ):
        field = main_field(controller, name)
        type_into(qtbot, field, typed)
        assert field.error.text().startswith(error), typed
        assert "Allowed" in field.error.text(), typed
        assert field.editor.property("wrong"), typed
        assert not controller.window.run_bar.start.isEnabled(), typed


def test_a_conflict_is_shown_at_the_changed_setting(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    heads, width = all_fields(controller, qtbot)["n_heads"], main_field(controller, "hidden_dim")
    type_into(qtbot, heads, "7")
    assert "7 attention heads" in heads.error.text()
    assert width.error.text() == heads.error.text()
    assert width.editor.property("wrong")
    type_into(qtbot, width, "140")
    assert heads.error.text() == ""
    assert not width.editor.property("wrong")
    assert controller.window.run_bar.start.isEnabled()


def test_every_conflict_has_fields() -> None:
    sources = (config.check_combinations, reward_settings)
    codes = {code for one in sources for code in re.findall(r'TraindeckError\("([\w.]+)"', inspect.getsource(one))}
    assert codes == set(CONFLICTING_KNOBS)
    assert {name for names in CONFLICTING_KNOBS.values() for name in names} <= set(form_knobs())


def test_rewards_are_required_and_checked_in_the_form(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    form = controller.form
    form.set_text("objective", "grpo")
    assert form.blocked_reason == "Objective grpo has no rewards. Set “Rewards”, for example to exact."
    form.set_text("rewards", "correct")
    assert form.blocked_reason.startswith("“correct” is not a reward.")
    form.set_text("rewards", "exact")
    assert form.error("rewards") == ""


def test_more_processes_than_sequences_are_shown_at_the_involved_settings(
    make_window: MakeWindow, qtbot: QtBot
) -> None:
    controller = make_window()
    names = ("nproc_per_node", "batch_size", "gradient_accumulation_steps")
    fields = [all_fields(controller, qtbot)[name] for name in names]
    for field, typed in zip(fields, ("3", "2", "1"), strict=True):
        type_into(qtbot, field, typed)
    assert all("3 processes cannot share 2 sequences" in field.error.text() for field in fields)
    blocker = controller.form.find_blocker()
    assert blocker is not None
    assert blocker.field == "nproc_per_node"
    type_into(qtbot, fields[0], "2")
    assert not any(field.error.text() for field in fields)
    assert controller.form.find_blocker() is None
