"""Section Model of the setup panel: choice of the base model, its summary, what is trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QComboBox, QFileDialog
from pytestqt.qtbot import QtBot

from app.pages.setup.model_section import ModelSection
from tests.gui.conftest import MakeWindow, click
from tests.gui.model_folders import add_model_run, write_model
from tests.gui.setup_form import all_fields, drop, main_field, mime_data, type_into
from trainer_core import presets
from trainer_core.runs import checkpoint_dir

CHOICES = ("new", "folder", "hub", "run")


def choose(qtbot: QtBot, combo: QComboBox, row: int) -> None:
    """Choose an entry with the keyboard."""
    combo.setFocus()
    qtbot.keyClick(combo, Qt.Key.Key_Home)
    for _ in range(row):
        qtbot.keyClick(combo, Qt.Key.Key_Down)


def choose_kind(qtbot: QtBot, section: ModelSection, kind: str) -> None:
    choose(qtbot, section.choice, CHOICES.index(kind))


def wait_for_summary(qtbot: QtBot, section: ModelSection) -> None:
    qtbot.waitUntil(lambda: section.monitor.result is not None, timeout=20_000)


def summary_text(section: ModelSection) -> str:
    return section.summary.text().replace("\u00a0", " ")


def test_a_typed_folder_is_summarized_and_hides_the_settings_of_a_new_model(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "我的 模型")
    controller = make_window()
    section, form = controller.window.setup.model, controller.form
    form.set_text("max_seq_len", "128")
    assert main_field(controller, "hidden_dim").isVisible()
    assert not main_field(controller, "method").isVisible()
    choose_kind(qtbot, section, "folder")
    assert section.error.text() == form.blocked_reason == "Choose a model folder"
    type_into(qtbot, section.folder, str(folder))
    wait_for_summary(qtbot, section)
    assert summary_text(section) == "80,640 parameters · apache-2.0 · context 128 · on this disk"
    assert section.trained.text() == "Trained: all 80,640 weights"
    assert not main_field(controller, "hidden_dim").isVisible()
    hidden_dim = all_fields(controller, qtbot)["hidden_dim"]
    assert not hidden_dim.editor.isEnabled()
    assert "Determined by the base model" in hidden_dim.unused.text()
    form.set_values({"method": "lora", "optimizer": "adamw"})
    type_into(qtbot, main_field(controller, "lora_rank"), "2")
    assert section.trained.text().replace("\u00a0", " ") == "Trained: 3,712 weights (4.4 %) · frozen: 80,640"
    type_into(qtbot, main_field(controller, "max_seq_len"), "256")
    assert "at most 128 tokens" in main_field(controller, "max_seq_len").error.text()
    choose_kind(qtbot, section, "new")
    assert (form.base_model, form.value("method"), form.blocked_reason) == ("", "full", "")
    assert hidden_dim.editor.isEnabled()
    form.undo_stack.undo()
    assert (form.base_model, form.value("method")) == (str(folder), "lora")
    assert section.choice.currentData() == "folder"


def test_a_folder_is_browsed_or_dropped_and_what_is_wrong_with_it_is_said(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = write_model(tmp_path / "good"), tmp_path / "bad"
    bad.mkdir()
    controller = make_window()
    section, form = controller.window.setup.model, controller.form
    choose_kind(qtbot, section, "folder")
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: str(bad))
    click(qtbot, section.browse)
    wait_for_summary(qtbot, section)
    assert "config.json is missing" in section.error.text()
    assert form.blocked_reason == section.error.text()
    click(qtbot, controller.window.run_bar.show_reason_button)
    assert controller.window.focusWidget() is section.folder
    drop(section.folder, mime_data(good), QPoint(5, 5))
    wait_for_summary(qtbot, section)
    assert (form.base_model, section.error.text(), form.blocked_reason) == (str(good), "", "")
    form.undo_stack.undo()
    assert section.folder.text() == form.base_model == str(bad)


def test_runs_that_are_base_models_are_offered_by_name(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    add_model_run(home, "answers")
    for name, base in (("adapter", home / "runs" / "answers"), ("without base", home / "nowhere")):
        run = add_model_run(home, name)
        folder = checkpoint_dir.list_checkpoints(run / "checkpoints")[-1]
        (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}), "utf-8")
        checkpoint_dir.write_manifest(folder, 60, "final", None)
    controller = make_window()
    section = controller.window.setup.model
    qtbot.waitUntil(lambda: section.run.count() == 2, timeout=20_000)
    assert {section.run.itemText(row) for row in range(2)} == {"answers", "adapter"}
    choose_kind(qtbot, section, "run")
    choose(qtbot, section.run, section.run.findText("adapter"))
    wait_for_summary(qtbot, section)
    assert summary_text(section) == "80,640 parameters · apache-2.0 · context 128 · on this disk"
    assert controller.form.changes() == {"base_model": "adapter"}
    arguments = controller._train_arguments("")
    assert arguments[arguments.index("--base-model") + 1] == "adapter"


@pytest.mark.parametrize(("language", "reason"), [("en", "none with a checkpoint"), ("zh", "没有带检查点的运行")])
def test_without_runs_the_choice_of_a_run_is_disabled_with_the_reason(
    make_window: MakeWindow, language: str, reason: str
) -> None:
    section = make_window(language=language).window.setup.model
    index = section.choice.model().index(CHOICES.index("run"), 0)
    assert not index.flags() & Qt.ItemFlag.ItemIsEnabled
    assert reason in index.data()


@pytest.mark.parametrize(
    ("base_model", "kind"),
    [("Qwen/Qwen3-0.6B", "hub"), ("preset:quickstart_sft", "run"), ("/models/mine", "folder"), ("", "new")],
)
def test_a_preset_selects_the_kind_of_its_base_model(
    make_window: MakeWindow, qtbot: QtBot, base_model: str, kind: str
) -> None:
    controller = make_window()
    section, form = controller.window.setup.model, controller.form
    preset = presets.load("cpu")
    form.choose_preset(replace(preset, knobs={**preset.knobs, "base_model": base_model}))
    assert section.choice.currentData() == kind
    shown = {"hub": section.hub.text(), "folder": section.folder.text(), "run": section.run.currentText()}
    assert shown.get(kind, "") == base_model
    assert form.changes() == {}
    if base_model.startswith("preset:"):
        wait_for_summary(qtbot, section)
        assert "quickstart_sft" in section.summary.text()
        assert section.error.text() == ""
    form.undo_stack.undo()
    assert section.choice.currentData() == "new"


def test_a_model_of_the_hub_is_summarized_before_it_is_downloaded(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    section = controller.window.setup.model
    choose_kind(qtbot, section, "hub")
    type_into(qtbot, section.hub, "google/gemma-3-270m-it")
    assert section.choice.currentData() == "hub"
    wait_for_summary(qtbot, section)
    assert summary_text(section) == (
        "268.1 million parameters · Gemma · context 32,768 · download 511 MiB · accept its license at the hub first"
    )
    type_into(qtbot, section.hub, "someone/unknown")
    wait_for_summary(qtbot, section)
    assert section.summary.text() == "is downloaded at the start"
    assert section.trained.text() == ""
    type_into(qtbot, section.hub, "no-model")
    wait_for_summary(qtbot, section)
    assert "no-model" in section.error.text()
