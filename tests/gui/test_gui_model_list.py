"""List of base models: what fits, search, keyboard, choice."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.preview_keys import PreviewResult
from app.pages.setup.model_list import ModelListDialog
from tests.gui.conftest import RTX_3060, MakeWindow, activate, click
from tests.gui.model_folders import add_model_run, write_model
from tests.gui.test_gui_presets import select_preset
from trainer_core import protocol
from trainer_core.base_model import catalogue
from trainer_core.docgen.examples import EVENTS
from trainer_core.system import hardware
from trainer_core.system.hardware import MachineInfo

GIB = 2**30
GPU_MACHINE = MachineInfo(
    (RTX_3060,), None, "", "580.65", (13, 0), 16 * GIB, 9 * GIB, "AMD Ryzen 7", 8, 16, "Windows"
)  # fmt: skip


def open_list(qtbot: QtBot, controller: Controller) -> ModelListDialog:
    click(qtbot, controller.window.setup.model.list_button)
    dialog = controller.window.findChild(ModelListDialog)
    assert dialog is not None
    qtbot.waitUntil(lambda: bool(dialog.table.shown_rows()), timeout=20_000)
    activate(qtbot, dialog)
    return dialog


def names(dialog: ModelListDialog) -> list[str]:
    return [row.name for row in dialog.table.shown_rows()]


def cell(dialog: ModelListDialog, name: str, column: str, role: int = Qt.ItemDataRole.DisplayRole) -> str:
    model = dialog.table.model()
    section = dialog.table.row_model.names.index(column)
    return str(model.index(names(dialog).index(name), section).data(role))


def tooltip(dialog: ModelListDialog, name: str) -> str:
    return cell(dialog, name, "time", Qt.ItemDataRole.ToolTipRole)


def test_the_list_shows_what_fits_and_the_keyboard_chooses_a_model(
    make_window: MakeWindow, qtbot: QtBot, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "probe", lambda: GPU_MACHINE)
    add_model_run(home, "answers")
    controller = make_window()
    form = controller.form
    controller._settings.add_recent_model(str(write_model(tmp_path / "my model")))
    qtbot.waitUntil(lambda: bool(controller._history.runs), timeout=10_000)
    dialog = open_list(qtbot, controller)
    assert set(names(dialog)) == {"answers", "my model", *(model.name for model in catalogue.load())}
    fits = {name: cell(dialog, name, "fits") for name in ("answers", "Qwen3-1.7B", "Llama-3.1-8B", "Qwen3-14B")}
    all_methods = "full, lora, qlora"
    assert fits == {"answers": all_methods, "Qwen3-1.7B": "lora, qlora", "Llama-3.1-8B": "qlora", "Qwen3-14B": "no"}
    assert "12.0 GiB of VRAM of the NVIDIA GeForce RTX 3060" in dialog.note.text()
    assert cell(dialog, "my model", "download") == "on this disk"
    assert cell(dialog, "Qwen3-1.7B", "time") == "–"
    assert "Preview the data" in tooltip(dialog, "Qwen3-1.7B")
    assert "no method fits" in tooltip(dialog, "Qwen3-14B")
    dialog.only_fitting.click()
    assert "Qwen3-14B" not in names(dialog)
    qtbot.keyClicks(dialog.search, "gemma-3-1b")
    assert names(dialog) == ["gemma-3-1b-pt", "gemma-3-1b-it"]
    qtbot.keyClick(dialog.search, Qt.Key.Key_Down)
    assert dialog.details.text().startswith("google/gemma-3-1b-it\n999.9 million parameters")
    qtbot.keyClick(dialog.search, Qt.Key.Key_Return)
    assert form.changes() == {"base_model": "google/gemma-3-1b-it", "method": "lora", "optimizer": "adamw"}
    assert controller.window.setup.model.hub.text() == "google/gemma-3-1b-it"
    form.undo_stack.undo()
    assert form.changes() == {}


def test_the_list_estimates_the_time_for_the_chosen_data(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "probe", lambda: GPU_MACHINE)
    data = tmp_path / "questions.jsonl"
    data.write_bytes(b'{"prompt": "a", "response": "b"}\n' * 50_000)  # 1.65 MB
    controller = make_window()
    select_preset(qtbot, controller, "finetune_8gb")  # three epochs with LoRA
    controller.form.add_data([str(data)])
    qtbot.waitUntil(lambda: controller.window.setup.data.monitor.result is not None, timeout=10_000)
    dialog = open_list(qtbot, controller)
    # 4 FLOPs x 1.72 billion weights x 3 epochs of 412,500 tokens, at 0.4 x 25.5 TFLOP/s
    assert cell(dialog, "Qwen3-1.7B", "time") == "≈ 14 min"
    assert cell(dialog, "Llama-3.1-8B", "time") == "≈ 61 min"  # without 0.5 billion weights of the embedding
    assert "Training on the chosen data, qlora: about 61 min, estimated" in tooltip(dialog, "Llama-3.1-8B")
    dialog.table.sortByColumn(dialog.table.row_model.names.index("time"), Qt.SortOrder.AscendingOrder)
    assert names(dialog)[0].startswith("SmolLM2-135M")
    assert cell(dialog, names(dialog)[-1], "time") == "–"


def test_without_a_match_no_model_can_be_used_and_escape_closes_the_list(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    dialog = open_list(qtbot, controller)
    assert "of RAM, as there is no NVIDIA GPU" in dialog.note.text()
    qtbot.keyClicks(dialog.search, "no such model")
    assert not dialog.use_button.isEnabled()
    assert dialog.use_button.toolTip() == "Select a model"
    qtbot.keyClick(dialog.search, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: not controller.window.findChildren(QDialog))
    assert controller.form.changes() == {}


def test_the_list_shows_the_memory_and_time_that_a_check_measured(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    controller.form.set_values({"base_model": "Qwen/Qwen3-0.6B", "method": "lora", "optimizer": "adamw"})
    report = EVENTS[protocol.CheckReport]
    report = msgspec.structs.replace(report, chosen=msgspec.structs.replace(report.chosen, peak=2 * GIB))
    result = PreviewResult(controller.check_job.compute_key(), protocol.CheckReport, report)
    controller.check_job.result = result
    dialog = open_list(qtbot, controller)
    assert [row.name for row in dialog.table.selected_rows()] == ["Qwen3-0.6B"]
    *_, memory, time = dialog.details.text().splitlines()
    assert "full: about" in memory
    assert " · lora: " in memory.partition("GiB, measured")[0]
    assert memory.count("about") == 2
    assert time == "Training on the chosen data, lora: 4.1 h, measured"
    assert cell(dialog, "Qwen3-0.6B", "time") == "4.1 h"
