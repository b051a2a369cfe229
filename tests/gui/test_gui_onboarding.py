"""Welcome page, onboarding steps, summary of the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QDragLeaveEvent
from PySide6.QtWidgets import QApplication, QLabel, QWidget
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from app.pages.welcome.page import WelcomePage
from tests.gui.conftest import RTX_3060, MakeWindow, click, replace_machine, wait_for_state
from tests.gui.setup_form import all_fields, drag, drop, main_field, mime_data
from trainer_core.system.hardware import GpuInfo, MachineInfo
from trainer_core.system.nvml import NoGpuReason

GIB = 2**30
SetMachine = Callable[..., None]


@pytest.fixture(autouse=True)
def set_machine(monkeypatch: pytest.MonkeyPatch) -> SetMachine:
    """Replaces the probed hardware; initially a GPU with 12 GiB."""

    def replace(
        *gpus: GpuInfo, no_gpu: NoGpuReason = "no_library", cuda: tuple[int, int] = (13, 0), card_present: bool = False
    ) -> None:
        no_gpu_reason, driver = (None, "580.65") if gpus else (no_gpu, None)
        machine = MachineInfo(
            gpus, no_gpu_reason, "", driver, cuda if gpus else None, 16 * GIB, 9 * GIB, "AMD  Ryzen 7", 8, 16, "Windows"
        )
        replace_machine(monkeypatch, machine, card_present=card_present)

    replace(RTX_3060)
    return replace


def welcome_page(controller: Controller, qtbot: QtBot) -> WelcomePage:
    """The welcome page once the hardware is probed."""
    page = controller.welcome_page
    qtbot.waitUntil(page.use_preset_button.isEnabled, timeout=10_000)
    return page


def visible_text(page: QWidget) -> str:
    return "\n".join(label.text() for label in page.findChildren(QLabel) if not label.isHidden())


def step_states(controller: Controller) -> list[str]:
    return list(controller.window.setup.onboarding.states.values())


# --- welcome page -----------------------------------------------------------------------------------------


def test_the_first_start_shows_the_hardware_and_recommends_a_preset(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    page = welcome_page(controller, qtbot)
    assert page.isVisible()
    assert not controller.window.plots.isVisible()
    qtbot.waitUntil(lambda: "NVIDIA GeForce RTX 3060, 12.0 GiB of VRAM" in visible_text(page))
    assert "16.0 GiB, 9.0 GiB free" in visible_text(page)
    assert "AMD Ryzen 7, 8 cores" in visible_text(page)
    assert page.preset_title.text() == "Recommended preset: GPU"
    assert page.reason_label.text().startswith("Hardware: ")
    click(qtbot, page.use_preset_button)
    assert controller.form.preset.name == "gpu"
    assert not page.use_preset_button.isEnabled()
    assert "drop" in page.next_step_label.text()
    controller.form.add_data(["D:/mine.txt"])
    assert "Check or Start" in page.next_step_label.text()


def test_without_a_gpu_the_preset_for_the_cpu_is_recommended(
    make_window: MakeWindow, qtbot: QtBot, set_machine: SetMachine
) -> None:
    set_machine()
    page = welcome_page(make_window(), qtbot)
    qtbot.waitUntil(lambda: "No NVIDIA GPU: small models train on the CPU" in visible_text(page))
    assert page.preset_title.text() == "Recommended preset: CPU"
    assert page.driver_problem_label.isHidden()


@pytest.mark.parametrize(
    ("machine", "texts"),
    [
        ({"cuda": (11, 4)}, ("580.65", "too old", "nvidia.com/drivers", "setup")),
        ({"no_gpu": "no_library", "card_present": True}, ("no driver", "nvidia.com/drivers")),
        ({"no_gpu": "driver_mismatch", "card_present": True}, ("Restart the computer",)),
    ],
)
def test_a_driver_problem_is_shown_with_its_remedy(
    make_window: MakeWindow, qtbot: QtBot, set_machine: SetMachine, machine: dict[str, object], texts: tuple[str, ...]
) -> None:
    set_machine(*(() if "no_gpu" in machine else (RTX_3060,)), **machine)
    page = welcome_page(make_window(), qtbot)
    assert page.driver_problem_label.isVisible()
    for part in texts:
        assert part in page.driver_problem_label.text()
    assert page.preset_title.text() == "Recommended preset: CPU"


def test_the_example_button_trains_on_built_in_data(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    page = welcome_page(controller, qtbot)
    controller.form.add_data(["D:/mine.txt"])
    controller.form.set_text("batch_size", "3")
    click(qtbot, page.example_button)
    arguments = controller.active_run.process.arguments
    assert arguments[arguments.index("--preset") + 1] == "quickstart_sft"
    assert "D:/mine.txt" not in arguments  # the data of the preset needs no flag
    assert controller.form.data == ["builtin:tasks"]
    assert "--batch-size" not in arguments
    assert not page.isVisible()
    assert controller.window.plots.isVisible()
    wait_for_state(qtbot, controller, RunState.FINISHED, 30.0)
    controller.form.undo_stack.undo()
    assert controller.form.data == ["D:/mine.txt"]
    assert controller.form.changes() == {"batch_size": 3}


def test_a_closed_welcome_page_is_only_shown_from_the_menu(make_window: MakeWindow, qtbot: QtBot) -> None:
    first = make_window()
    click(qtbot, welcome_page(first, qtbot).close_button)
    assert first.window.plots.isVisible()
    first.window.close()
    second = make_window()
    assert not second.welcome_page.isVisible()
    assert second.window.plots.isVisible()
    second.window.show_page("log")
    second.window.menus.actions["welcome"].trigger()
    assert welcome_page(second, qtbot).isVisible()
    assert not second.window.plots.isVisible()


def test_with_runs_on_disk_the_window_starts_with_the_plots(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    (home / "runs" / "earlier").mkdir(parents=True)
    controller = make_window()
    assert not controller.welcome_page.isVisible()
    assert controller.window.plots.isVisible()


def test_with_user_data_the_window_starts_without_the_welcome_page(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    first = make_window()
    first.form.add_data([str(tmp_path / "mine.txt")])
    first.window.close()
    assert not make_window().welcome_page.isVisible()


def test_the_welcome_page_follows_the_language(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    page = welcome_page(controller, qtbot)
    controller.set_language("zh")
    assert page.example_button.text() == "训练示例"
    qtbot.waitUntil(lambda: "显存 12.0 GiB" in visible_text(page))
    assert "GPU" in page.preset_title.text()
    controller.set_language("en")
    assert page.use_preset_button.text() == "Use this preset"


# --- onboarding steps --------------------------------------------------------------------------------------


def test_the_steps_show_their_states(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(check="check")
    onboarding = controller.window.setup.onboarding
    controller.form.set_text("batch_size", "8")
    assert step_states(controller) == ["done", "done", "next", "open"]
    height = onboarding.height()
    controller.form.set_data([])
    assert step_states(controller)[0] == "next"
    assert "add or drop a file" in onboarding.hint.text()
    controller.form.add_data(["builtin:python"])
    controller.form.set_text("batch_size", "0")
    assert step_states(controller)[1] == "wrong"
    assert "Batch size" in onboarding.hint.text()
    assert onboarding.steps["preset"].accessibleName() == "Preset: needs attention"
    controller.form.undo_stack.undo()
    click(qtbot, onboarding.steps["check"])
    qtbot.waitUntil(lambda: bool(controller.check_job.verdict), timeout=30_000)
    qtbot.waitUntil(lambda: step_states(controller) == ["done", "done", "done", "next"])
    assert onboarding.hint.text() == "Fits. Next: Start"
    assert onboarding.height() == height
    controller.form.set_text("n_layers", "9")
    qtbot.waitUntil(lambda: step_states(controller) == ["done", "done", "next", "open"])


def test_the_start_step_starts_or_focuses_the_invalid_field(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("slow")
    onboarding = controller.window.setup.onboarding
    controller.window.activateWindow()
    controller.form.set_text("n_layers", "0")
    click(qtbot, onboarding.steps["start"])
    qtbot.waitUntil(main_field(controller, "n_layers").editor.hasFocus)
    assert controller.active_run.machine.can_start
    controller.form.undo_stack.undo()
    click(qtbot, onboarding.steps["start"])
    assert controller.active_run.machine.is_active
    assert onboarding.hint.text() == "A run is active"
    assert step_states(controller)[3] == "next"


def test_the_data_and_preset_steps_focus_their_fields(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    setup = controller.window.setup
    controller.window.activateWindow()
    click(qtbot, setup.onboarding.steps["data"])
    qtbot.waitUntil(setup.data.list.hasFocus)
    click(qtbot, setup.onboarding.steps["preset"])
    qtbot.waitUntil(setup.presets.combo_box.hasFocus)


def test_hidden_steps_stay_hidden_at_the_next_start(make_window: MakeWindow, qtbot: QtBot) -> None:
    first = make_window()
    click(qtbot, first.window.setup.onboarding.close_button)
    assert not first.window.setup.onboarding.isVisible()
    first.window.close()
    second = make_window()
    action = second.window.menus.actions["path"]
    assert not second.window.setup.onboarding.isVisible()
    assert not action.isChecked()
    action.trigger()
    assert second.window.setup.onboarding.isVisible()
    assert action.isChecked()


def test_the_show_button_reveals_an_invalid_field_of_all_settings(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    window = controller.window
    window.activateWindow()
    controller.form.set_text("beta1", "2")
    click(qtbot, window.run_bar.show_reason_button)
    assert window.tabs.currentWidget() is window.pages["settings"]
    editor = next(field.editor for field in window.advanced.fields if field.knob.name == "beta1")
    qtbot.waitUntil(lambda: editor.hasFocus() and not editor.visibleRegion().isEmpty())  # scrolled to
    window.advanced.search.setText("learning rate")
    click(qtbot, window.run_bar.show_reason_button)
    qtbot.waitUntil(lambda: editor.hasFocus() and not editor.visibleRegion().isEmpty())


# --- data files -----------------------------------------------------------------------------------------------


def test_dropped_files_become_training_data(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    controller = make_window()
    folder, table = tmp_path / "语料 one", tmp_path / "chats.jsonl"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text("text " * 100, encoding="utf-8")
    table.write_text('{"prompt": "a", "response": "b"}\n', encoding="utf-8")
    mime = mime_data(folder, table)
    drag_event = drag(controller.window, mime)
    assert drag_event.isAccepted()
    assert drag_event.dropAction() == Qt.DropAction.CopyAction  # never a move
    assert controller.setup_controller.drop_indicator.text() == "Drop to use as training data\n语料 one, chats.jsonl"
    QApplication.sendEvent(controller.window, QDragLeaveEvent())
    assert controller.setup_controller.drop_indicator.text() == ""
    drop(controller.window, mime)
    assert controller.setup_controller.drop_indicator.text() == ""
    assert controller.form.data == [str(folder), str(table)]
    summary = controller.window.setup.data.summary
    qtbot.waitUntil(lambda: summary.text() == "text, jsonl · 4 files · 1.5 KiB", timeout=5_000)
    assert table.exists()


def test_a_dropped_link_is_ignored(make_window: MakeWindow) -> None:
    controller = make_window()
    drop(controller.window, mime_data("https://example.org/data.txt"))
    assert controller.setup_controller.drop_indicator.text() == ""
    assert controller.form.data == ["builtin:python"]


def test_a_missing_source_disables_start_until_it_exists(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    text = tmp_path / "书.txt"
    text.write_text("春天来了。\n" * 50, encoding="utf-8")
    controller = make_window()
    bar = controller.window.run_bar
    controller.form.add_data([str(text), str(tmp_path / "missing.csv")])
    qtbot.waitUntil(lambda: not bar.start.isEnabled(), timeout=5_000)
    summary = controller.window.setup.data.summary
    assert bar.start.toolTip() == summary.text() == "Not found: missing.csv"
    assert summary.objectName() == "warnText"
    assert bar.reason_label.text() == "Cannot start: Not found: missing.csv"
    assert not bar.check.isEnabled()
    click(qtbot, bar.show_reason_button)
    sources = controller.window.setup.data.list
    assert controller.window.focusWidget() is sources
    qtbot.keyClick(sources, Qt.Key.Key_Delete)  # the missing source is selected
    assert controller.form.data == [str(text)]
    qtbot.waitUntil(bar.start.isEnabled, timeout=10_000)
    controller.form.undo_stack.undo()
    qtbot.waitUntil(lambda: not bar.start.isEnabled(), timeout=10_000)
    (tmp_path / "missing.csv").write_text("text\na\n", encoding="utf-8")
    qtbot.waitUntil(bar.start.isEnabled, timeout=10_000)
    assert not bar.reason_label.isVisible()


def test_the_preview_button_of_the_setup_panel_starts_a_preview(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(preview="preview")
    click(qtbot, controller.window.setup.data.preview_button)
    assert controller.window.tabs.currentWidget() is controller.window.pages["data"]
    assert controller.preview_job.running is not None
    qtbot.waitUntil(lambda: controller.preview_job.running is None, timeout=30_000)


def test_a_file_dropped_on_a_path_field_becomes_its_text(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    controller = make_window()
    editors = {name: field.editor for name, field in all_fields(controller, qtbot).items()}
    drop(editors["tokenizer"], mime_data(tmp_path / "tokenizer.json"))
    assert controller.form.changes() == {"tokenizer": str(tmp_path / "tokenizer.json")}
    assert not editors["batch_size"].acceptDrops()  # dropped files are data elsewhere
