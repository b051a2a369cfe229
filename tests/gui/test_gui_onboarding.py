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
from app.services import gpu_probe
from tests.gui.conftest import MakeWindow
from tests.gui.setup_form import all_fields, click, drag, drop, main_field, mime_data
from trainer_core.system.hardware import GpuInfo, MachineInfo
from trainer_core.system.nvml import NoGpuReason

GIB = 2**30
CARD = GpuInfo(0, "NVIDIA GeForce RTX 3060", "GPU-0", 12 * GIB, (8, 6))
HasMachine = Callable[..., None]


@pytest.fixture(autouse=True)
def has_machine(monkeypatch: pytest.MonkeyPatch) -> HasMachine:
    """Replaces the probed hardware; initially a GPU with 12 GB."""

    def has(
        *gpus: GpuInfo, no_gpu: NoGpuReason = "no_library", cuda: tuple[int, int] = (13, 0), seen: bool = False
    ) -> None:
        why, driver = (None, "580.65") if gpus else (no_gpu, None)
        found = MachineInfo(
            gpus, why, "", driver, cuda if gpus else None, 16 * GIB, 9 * GIB, "AMD  Ryzen 7", 8, 16, "Windows"
        )
        monkeypatch.setattr(gpu_probe, "probe", lambda: found)
        monkeypatch.setattr(gpu_probe, "nvidia_card_present", lambda: seen)
        monkeypatch.setattr(gpu_probe, "torch_version", lambda: "2.13.0")

    has(CARD)
    return has


def welcome(controller: Controller, qtbot: QtBot) -> WelcomePage:
    """The page after the hardware was probed."""
    page = controller.welcome_page
    qtbot.waitUntil(page.use_preset_button.isEnabled, timeout=10_000)
    return page


def visible_text(page: QWidget) -> str:
    return "\n".join(label.text() for label in page.findChildren(QLabel) if not label.isHidden())


def marks(controller: Controller) -> list[str]:
    return list(controller.window.setup.onboarding.states.values())


# --- welcome page -----------------------------------------------------------------------------------------


def test_the_first_start_shows_the_hardware_and_recommends_a_preset(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    page = welcome(controller, qtbot)
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
    make_window: MakeWindow, qtbot: QtBot, has_machine: HasMachine
) -> None:
    has_machine()
    page = welcome(make_window(), qtbot)
    qtbot.waitUntil(lambda: "No NVIDIA GPU: small models train on the CPU" in visible_text(page))
    assert page.preset_title.text() == "Recommended preset: CPU"
    assert page.driver_problem_label.isHidden()


@pytest.mark.parametrize(
    ("machine", "texts"),
    [
        ({"cuda": (11, 4)}, ("580.65", "too old", "nvidia.com/drivers", "setup")),
        ({"none": True, "seen": True}, ("no driver", "nvidia.com/drivers")),
        ({"none": True, "seen": True, "no_gpu": "driver_mismatch"}, ("Restart the computer",)),
    ],
)
def test_a_driver_problem_is_shown_with_its_remedy(
    make_window: MakeWindow, qtbot: QtBot, has_machine: HasMachine, machine: dict[str, object], texts: tuple[str, ...]
) -> None:
    has_machine(*(() if machine.pop("none", False) else (CARD,)), **machine)
    page = welcome(make_window(), qtbot)
    assert page.driver_problem_label.isVisible()
    for part in texts:
        assert part in page.driver_problem_label.text()
    assert page.preset_title.text() == "Recommended preset: CPU"


def test_one_click_trains_with_built_in_data(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    page = welcome(controller, qtbot)
    controller.form.add_data(["D:/mine.txt"])
    controller.form.set_text("batch_size", "3")
    click(qtbot, page.quickstart_button)
    arguments = controller.active_run.process.arguments
    assert arguments[arguments.index("--preset") + 1] == "quickstart"
    assert "D:/mine.txt" not in arguments  # the preset's own data, which needs no flag
    assert controller.form.data == ["builtin:python"]
    assert "--batch-size" not in arguments
    assert not page.isVisible()
    assert controller.window.plots.isVisible()
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.FINISHED, timeout=30_000)
    controller.form.undo_stack.undo()
    assert controller.form.data == ["D:/mine.txt"]
    assert controller.form.changes() == {"batch_size": 3}


def test_a_closed_welcome_page_is_only_shown_from_the_menu(make_window: MakeWindow, qtbot: QtBot) -> None:
    first = make_window()
    click(qtbot, welcome(first, qtbot).close_button)
    assert first.window.plots.isVisible()
    first.window.close()
    second = make_window()
    assert not second.welcome_page.isVisible()
    assert second.window.plots.isVisible()
    second.window.show_page("log")
    second.window.menus.actions["welcome"].trigger()
    assert welcome(second, qtbot).isVisible()
    assert not second.window.plots.isVisible()


def test_with_runs_on_disk_the_window_starts_with_plots(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    (own_folders / "runs" / "earlier").mkdir(parents=True)
    controller = make_window()
    assert not controller.welcome_page.isVisible()
    assert controller.window.plots.isVisible()


def test_with_own_data_the_window_starts_without_the_welcome_page(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    first = make_window()
    first.form.add_data([str(tmp_path / "mine.txt")])
    first.window.close()
    assert not make_window().welcome_page.isVisible()


def test_the_welcome_page_follows_the_language(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    page = welcome(controller, qtbot)
    controller.set_language("zh")
    assert page.quickstart_button.text() == "训练示例"
    qtbot.waitUntil(lambda: "显存 12.0 GiB" in visible_text(page))
    assert "GPU" in page.preset_title.text()
    controller.set_language("en")
    assert page.use_preset_button.text() == "Use this preset"


# --- onboarding steps --------------------------------------------------------------------------------------


def test_the_steps_show_what_is_done_next_and_invalid(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(check="check")
    path = controller.window.setup.onboarding
    controller.form.set_text("batch_size", "8")
    assert marks(controller) == ["done", "done", "next", "open"]
    height = path.height()
    controller.form.set_data([])
    assert marks(controller)[0] == "next"
    assert "add or drop a file" in path.hint.text()
    controller.form.add_data(["builtin:python"])
    controller.form.set_text("batch_size", "0")
    assert marks(controller)[1] == "wrong"
    assert "Batch size" in path.hint.text()
    assert path.steps["preset"].accessibleName() == "Preset: needs attention"
    controller.form.undo_stack.undo()
    click(qtbot, path.steps["check"])
    qtbot.waitUntil(lambda: bool(controller.check_job.verdict), timeout=30_000)
    qtbot.waitUntil(lambda: marks(controller) == ["done", "done", "done", "next"])
    assert path.hint.text() == "Fits. Next: Start"
    assert path.height() == height
    controller.form.set_text("n_layers", "9")
    qtbot.waitUntil(lambda: marks(controller) == ["done", "done", "next", "open"])


def test_the_start_step_starts_or_focuses_the_invalid_field(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("slow")
    path = controller.window.setup.onboarding
    controller.window.activateWindow()
    controller.form.set_text("n_layers", "0")
    click(qtbot, path.steps["start"])
    qtbot.waitUntil(main_field(controller, "n_layers").editor.hasFocus)
    assert controller.active_run.machine.can_start
    controller.form.undo_stack.undo()
    click(qtbot, path.steps["start"])
    assert controller.active_run.machine.is_active
    assert path.hint.text() == "A run is active"
    assert marks(controller)[3] == "next"


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


def test_the_reason_reveals_a_field_of_all_settings(make_window: MakeWindow, qtbot: QtBot) -> None:
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


# --- files -----------------------------------------------------------------------------------------------


def test_dropped_files_become_training_data(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    controller = make_window()
    folder, table = tmp_path / "语料 one", tmp_path / "chats.jsonl"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text("text " * 100, encoding="utf-8")
    table.write_text('{"prompt": "a", "response": "b"}\n', encoding="utf-8")
    mime = mime_data(folder, table)
    entered = drag(controller.window, mime)
    assert entered.isAccepted()
    assert entered.dropAction() == Qt.DropAction.CopyAction  # never a move
    assert controller.setup_controller.drop_indicator.text() == "Drop to use as training data\n语料 one, chats.jsonl"
    QApplication.sendEvent(controller.window, QDragLeaveEvent())
    assert controller.setup_controller.drop_indicator.text() == ""
    drop(controller.window, mime)
    assert controller.setup_controller.drop_indicator.text() == ""
    assert controller.form.data == [str(folder), str(table)]
    seen = controller.window.setup.data.summary
    qtbot.waitUntil(lambda: seen.text() == "text, jsonl · 4 files · 1.5 KiB", timeout=5_000)
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
    controller.form.add_data([str(text), str(tmp_path / "gone.csv")])
    qtbot.waitUntil(lambda: not bar.start.isEnabled(), timeout=5_000)
    summary = controller.window.setup.data.summary
    assert bar.start.toolTip() == summary.text() == "Not found: gone.csv"
    assert summary.objectName() == "warnText"
    assert bar.reason_label.text() == "Cannot start: Not found: gone.csv"
    assert not bar.check.isEnabled()
    click(qtbot, bar.show_reason_button)
    sources = controller.window.setup.data.list
    assert controller.window.focusWidget() is sources
    qtbot.keyClick(sources, Qt.Key.Key_Delete)  # the missing one is selected
    assert controller.form.data == [str(text)]
    qtbot.waitUntil(bar.start.isEnabled, timeout=10_000)
    controller.form.undo_stack.undo()
    qtbot.waitUntil(lambda: not bar.start.isEnabled(), timeout=10_000)
    (tmp_path / "gone.csv").write_text("text\na\n", encoding="utf-8")
    qtbot.waitUntil(bar.start.isEnabled, timeout=10_000)
    assert not bar.reason_label.isVisible()


def test_one_click_starts_a_data_preview(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(look="preview")
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
