"""Validation data in the setup form: add, drop, remove, undo, restore, pass to the trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QFileDialog
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core import command_line
from app.core.log_store import LogStore
from app.pages.log import entry_texts
from tests.gui.conftest import MakeWindow
from tests.gui.setup_form import drag, drop, mime_data
from tests.gui.test_gui_data import run_preview
from trainer_core import presets, protocol
from trainer_core.protocol import Source


@pytest.fixture
def validation_file(tmp_path: Path) -> Path:
    path = tmp_path / "验证 dev.jsonl"
    path.write_text('{"prompt": "a", "response": "b"}\n' * 20, encoding="utf-8")
    return path


def arguments(controller: Controller) -> list[str]:
    form = controller.form
    return command_line.train_arguments(form.preset, form.changes(), form.data)


def test_without_validation_data_the_held_out_fraction_is_shown(make_window: MakeWindow) -> None:
    controller = make_window()
    editor = controller.window.setup.validation
    assert editor.summary.text() == "5 % of the data, or its validation split"
    assert not editor.list.isVisible()
    controller.form.set_text("validation_fraction", "0.2")
    assert editor.summary.text() == "20 % of the data, or its validation split"
    controller.form.set_text("validation_fraction", "0")
    assert editor.summary.text() == "None, or the data's validation split"


def test_files_are_added_by_the_buttons_and_removed_by_key(
    make_window: MakeWindow, qtbot: QtBot, validation_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = make_window()
    editor, form = controller.window.setup.validation, controller.form
    monkeypatch.setattr(QFileDialog, "getOpenFileNames", lambda *_, **__: ([str(validation_file)], ""))
    editor.add_file.click()
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_, **__: str(validation_file.parent))
    editor.add_folder.click()
    assert form.validation_data == [str(validation_file), str(validation_file.parent)]
    assert form.data == ["builtin:python"]
    assert editor.list.isVisible()
    assert arguments(controller)[-4:] == [
        "--validation-data",
        str(validation_file),
        "--validation-data",
        str(validation_file.parent),
    ]
    qtbot.waitUntil(lambda: "jsonl" in editor.summary.text(), timeout=5_000)
    editor.list.item(1).setSelected(True)
    qtbot.keyClick(editor.list, Qt.Key.Key_Delete)
    assert form.validation_data == [str(validation_file)]


def test_a_file_dropped_on_the_list_is_validation_data_and_elsewhere_training_data(
    make_window: MakeWindow, validation_file: Path
) -> None:
    controller = make_window()
    window, editor = controller.window, controller.window.setup.validation
    on_list, elsewhere, mime = (
        editor.mapTo(window, editor.rect().center()),
        QPoint(900, 300),
        mime_data(validation_file),
    )
    for position, text in ((on_list, "Drop to use as validation data"), (elsewhere, "Drop to use as training data")):
        drag(window, mime, position)
        assert controller.setup_controller.drop_indicator.text() == f"{text}\n{validation_file.name}"
    drop(window, mime, on_list)
    assert controller.form.validation_data == [str(validation_file)]
    assert controller.form.data == ["builtin:python"]
    drop(window, mime, elsewhere)
    assert controller.form.data == [str(validation_file)]
    assert controller.form.validation_data == [str(validation_file)]


def test_a_preset_keeps_validation_data_and_undo_removes_it(make_window: MakeWindow, validation_file: Path) -> None:
    controller = make_window()
    form = controller.form
    form.add_data([str(validation_file)])
    form.add_validation_data([str(validation_file)])
    form.choose_preset(presets.load("quickstart_sft"))
    assert form.validation_data == [str(validation_file)]
    form.undo_stack.undo()
    form.undo_stack.undo()
    assert form.validation_data == []
    assert form.data == [str(validation_file)]
    form.undo_stack.redo()
    assert form.validation_data == [str(validation_file)]
    assert controller.window.setup.validation.list.count() == 1


def test_validation_data_is_restored_at_the_next_start(make_window: MakeWindow, validation_file: Path) -> None:
    controller = make_window()
    controller.form.add_validation_data([str(validation_file)])
    controller.window.close()
    restored = make_window()
    assert restored.form.validation_data == [str(validation_file)]
    assert restored.window.setup.validation.list.item(0).text() == str(validation_file)


def test_missing_validation_data_disables_start_until_it_exists(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    controller = make_window()
    controller.form.add_validation_data([str(tmp_path / "missing.csv")])
    start, summary = controller.window.run_bar.start, controller.window.setup.validation.summary
    qtbot.waitUntil(lambda: not start.isEnabled(), timeout=5_000)
    assert summary.text() == start.toolTip() == "Not found: missing.csv"
    assert summary.objectName() == "warnText"
    controller.setup_controller.reveal_blocking_field()
    assert controller.window.focusWidget() is controller.window.setup.validation.list
    (tmp_path / "missing.csv").write_text("prompt,response\na,b\n", encoding="utf-8")
    qtbot.waitUntil(start.isEnabled, timeout=10_000)


def test_a_change_of_validation_data_changes_the_cache_keys(make_window: MakeWindow, validation_file: Path) -> None:
    controller = make_window()
    preview_key, check_key = controller.preview_job.compute_key(), controller.check_job.compute_key()
    controller.form.add_validation_data([str(validation_file)])
    assert controller.preview_job.compute_key() != preview_key
    assert controller.check_job.compute_key() != check_key


def test_the_data_page_shows_both_kinds_of_sources_and_their_overlap(
    make_window: MakeWindow, qtbot: QtBot, validation_file: Path, home: Path
) -> None:
    controller = make_window(None)
    controller.form.add_data([str(validation_file)])
    controller.form.add_validation_data([str(validation_file)])
    controller.form.set_text("vocab_size", "320")
    run_preview(controller, qtbot)
    page = controller.window.data
    assert page.failure.text() == ""
    names = [page.sources.item(row, 0).text() for row in range(page.sources.rowCount())]
    assert names == [validation_file.name, f"{validation_file.name} (validation)"]
    assert "20 of 20 validation rows" in page.warnings.text()


@pytest.mark.parametrize(("language", "text"), [("en", "Validation data: set (test)"), ("zh", "验证数据：set (test)")])
def test_the_log_names_the_validation_data(make_window: MakeWindow, language: str, text: str) -> None:
    make_window(language=language)
    log = LogStore()
    log.add(
        protocol.Ready(
            task="sft", train_documents=9, train_tokens=900, validation_documents=1, validation_tokens=100,
            vocab_size=300, parameters=1, steps_per_epoch=10, total_steps=20,
            validation_sources=[Source(path="/d/set", format="jsonl", split="test")],
        )
    )  # fmt: skip
    assert text in entry_texts.format_entry(list(log)[-1])
