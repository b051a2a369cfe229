"""The first five minutes: the welcome, the four steps to a run, and what is shown of data at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPoint, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDragLeaveEvent, QDropEvent
from PySide6.QtWidgets import QApplication, QLabel, QLineEdit, QWidget
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from app.pages.setup.knob_field import KnobField
from app.pages.welcome.page import WelcomePage
from app.services import gpu_probe
from tests.gui.conftest import MakeWindow
from trainer_core.system.hardware import GpuInfo, MachineInfo
from trainer_core.system.nvml import NoGpuReason

GIB = 2**30
CARD = GpuInfo(0, "NVIDIA GeForce RTX 3060", "GPU-0", 12 * GIB, (8, 6))
HasMachine = Callable[..., None]


@pytest.fixture(autouse=True)
def has_machine(monkeypatch: pytest.MonkeyPatch) -> HasMachine:
    """What the window finds when it looks at the machine; at first one with a card of 12 GB."""

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


def click(qtbot: QtBot, button: QWidget) -> None:
    assert button.isEnabled()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def welcome(controller: Controller, qtbot: QtBot) -> WelcomePage:
    """The page, once the machine was looked at."""
    page = controller.welcome_controller.page
    assert page is not None
    qtbot.waitUntil(page.use_preset_button.isEnabled, timeout=10_000)
    return page


def words_of(page: QWidget) -> str:
    return "\n".join(label.text() for label in page.findChildren(QLabel) if not label.isHidden())


def field_of(controller: Controller, name: str) -> KnobField:
    return next(field for field in controller.window.setup.fields if field.knob.name == name)


def marks(controller: Controller) -> list[str]:
    return [str(step.property("mark")) for step in controller.window.setup.onboarding.steps.values()]


# --- the welcome -----------------------------------------------------------------------------------------


def test_the_first_start_tells_the_machine_in_words_and_proposes_what_fits(
    make_window: MakeWindow, qtbot: QtBot
) -> None:
    controller = make_window()
    page = welcome(controller, qtbot)
    assert page.isVisible()
    assert not controller.window.plots.isVisible()
    qtbot.waitUntil(lambda: "NVIDIA GeForce RTX 3060, 12.0 GiB of VRAM" in words_of(page))
    said = words_of(page)
    assert "16.0 GiB, of which 9.0 GiB are free" in said
    assert "AMD Ryzen 7, 8 cores" in said
    assert page.preset_title.text() == "The preset that fits: GPU"
    assert "12.0 GiB of VRAM" in page.reason_label.text()
    click(qtbot, page.use_preset_button)
    assert controller.form.preset is not None
    assert controller.form.preset.name == "gpu"
    assert not page.use_preset_button.isEnabled()
    assert "drop" in page.next_step_label.text()
    controller.form.add_data(["D:/mine.txt"])
    assert "Check or Start" in page.next_step_label.text()


def test_without_a_card_that_is_said_and_the_processor_is_proposed_for(
    make_window: MakeWindow, qtbot: QtBot, has_machine: HasMachine
) -> None:
    has_machine()
    page = welcome(make_window(), qtbot)
    qtbot.waitUntil(lambda: "No NVIDIA GPU: small models train on the processor" in words_of(page))
    assert page.preset_title.text() == "The preset that fits: CPU"
    assert page.driver_problem_label.isHidden()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"cuda": (11, 4)}, ("580.65", "too old", "nvidia.com/drivers", "setup")),
        ({"none": True, "seen": True}, ("driver is not installed", "nvidia.com/drivers")),
        ({"none": True, "seen": True, "no_gpu": "driver_mismatch"}, ("Restart the computer",)),
    ],
)
def test_a_driver_that_is_in_the_way_is_told_with_what_to_do(
    make_window: MakeWindow, qtbot: QtBot, has_machine: HasMachine, given: dict[str, object], told: tuple[str, ...]
) -> None:
    has_machine(*(() if given.pop("none", False) else (CARD,)), **given)
    page = welcome(make_window(), qtbot)
    assert page.driver_problem_label.isVisible()
    for part in told:
        assert part in page.driver_problem_label.text()
    assert page.preset_title.text() == "The preset that fits: CPU"


def test_one_click_tries_it_with_built_in_data(make_window: MakeWindow, qtbot: QtBot) -> None:
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
    controller.form.undo()
    assert controller.form.data == ["D:/mine.txt"]
    assert controller.form.changes() == {"batch_size": 3}


def test_it_is_put_away_for_good_and_comes_back_from_the_menu(make_window: MakeWindow, qtbot: QtBot) -> None:
    first = make_window()
    click(qtbot, welcome(first, qtbot).close_button)
    assert first.window.plots.isVisible()
    first.window.close()
    second = make_window()
    assert second.welcome_controller.page is None
    assert second.window.plots.isVisible()
    second.window.show_page("log")
    second.window.menus.actions["welcome"].trigger()
    assert welcome(second, qtbot).isVisible()
    assert not second.window.plots.isVisible()


def test_where_there_are_runs_the_window_begins_with_plots(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    (own_folders / "runs" / "earlier").mkdir(parents=True)
    controller = make_window()
    assert controller.welcome_controller.page is None
    assert controller.window.plots.isVisible()


def test_who_has_chosen_data_already_is_not_greeted_again(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    first = make_window()
    first.form.add_data([str(tmp_path / "mine.txt")])
    first.window.close()
    assert make_window().welcome_controller.page is None


def test_it_speaks_chinese_as_soon_as_the_window_does(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    page = welcome(controller, qtbot)
    controller.set_language("zh")
    assert page.quickstart_button.text() == "用内置数据立即试试"
    qtbot.waitUntil(lambda: "显存 12.0 GiB" in words_of(page))
    assert "GPU" in page.preset_title.text()
    controller.set_language("en")
    assert page.use_preset_button.text() == "Use this preset"


# --- the four steps --------------------------------------------------------------------------------------


def test_the_steps_tell_what_is_done_what_is_next_and_why_start_is_not_possible(
    make_window: MakeWindow, qtbot: QtBot
) -> None:
    controller = make_window(check="check")
    path = controller.window.setup.onboarding
    controller.form.set_text("batch_size", "8")
    assert marks(controller) == ["done", "done", "next", "open"]
    height = path.height()
    controller.form.set_data([])
    assert marks(controller)[0] == "next"
    assert "add a file" in path.hint.text()
    controller.form.add_data(["builtin:python"])
    controller.form.set_text("batch_size", "0")
    assert marks(controller)[1] == "wrong"
    assert "Batch size" in path.hint.text()
    assert path.steps["preset"].accessibleName() == "Preset: to be put right"
    controller.form.undo()
    click(qtbot, path.steps["check"])
    qtbot.waitUntil(lambda: controller.check_job.verdict is not None, timeout=30_000)
    qtbot.waitUntil(lambda: marks(controller) == ["done", "done", "done", "next"])
    assert path.hint.text() == "It fits. Next: Start"
    assert path.height() == height  # nothing has jumped
    controller.form.set_text("n_layers", "9")  # the check is not of this
    qtbot.waitUntil(lambda: marks(controller) == ["done", "done", "next", "open"])


def test_a_click_on_start_starts_or_leads_to_what_is_in_the_way(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("slow")
    path = controller.window.setup.onboarding
    controller.window.activateWindow()
    controller.form.set_text("n_layers", "0")
    click(qtbot, path.steps["start"])
    qtbot.waitUntil(field_of(controller, "n_layers").editor.hasFocus)
    assert controller.active_run.machine.can_start
    controller.window.setup.run_name.setFocus()
    qtbot.mouseClick(path.hint, Qt.MouseButton.LeftButton)  # the sentence leads there, too
    qtbot.waitUntil(field_of(controller, "n_layers").editor.hasFocus)
    controller.form.undo()
    click(qtbot, path.steps["start"])
    assert controller.active_run.machine.is_active
    assert path.hint.text() == "A run is under way"
    assert marks(controller)[3] == "working"


def test_a_click_on_data_or_preset_puts_the_cursor_there(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    setup = controller.window.setup
    controller.window.activateWindow()
    click(qtbot, setup.onboarding.steps["data"])
    qtbot.waitUntil(setup.data.list.hasFocus)
    click(qtbot, setup.onboarding.steps["preset"])
    qtbot.waitUntil(setup.presets.combo_box.hasFocus)


def test_the_steps_can_be_hidden_for_good(make_window: MakeWindow, qtbot: QtBot) -> None:
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


@pytest.mark.parametrize("knob", ["beta1", "log_steps", "seed"])
def test_a_field_that_is_asked_for_while_others_are_still_made_is_scrolled_to(
    make_window: MakeWindow, qtbot: QtBot, knob: str
) -> None:
    window = make_window().window
    window.activateWindow()
    window.show_page("settings")
    while knob not in {field.knob.name for field in window.advanced.fields}:
        QApplication.processEvents()
    window.advanced.reveal(knob)
    qtbot.waitUntil(lambda: window.advanced.is_built, timeout=10_000)
    editor = next(field.editor for field in window.advanced.fields if field.knob.name == knob)
    qtbot.waitUntil(lambda: editor.hasFocus() and not editor.visibleRegion().isEmpty())


def test_the_reason_leads_to_a_field_that_only_all_settings_have(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    window = controller.window
    window.activateWindow()
    controller.form.set_text("beta1", "2")
    click(qtbot, window.run_bar.show_reason_button)
    assert window.tabs.currentWidget() is window.pages["settings"]
    qtbot.waitUntil(lambda: window.advanced.is_built, timeout=10_000)
    editor = next(field.editor for field in window.advanced.fields if field.knob.name == "beta1")
    qtbot.waitUntil(lambda: editor.hasFocus() and not editor.visibleRegion().isEmpty())  # scrolled to
    window.advanced.search.setText("learning rate")  # a search that does not find it is in nobody's way
    click(qtbot, window.run_bar.show_reason_button)
    qtbot.waitUntil(lambda: editor.hasFocus() and not editor.visibleRegion().isEmpty())


# --- files -----------------------------------------------------------------------------------------------


def files(*paths: Path) -> QMimeData:
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    return mime


def hover(window: QWidget, mime: QMimeData) -> QDragEnterEvent:
    actions = Qt.DropAction.CopyAction | Qt.DropAction.MoveAction
    event = QDragEnterEvent(QPoint(600, 300), actions, mime, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier)
    QApplication.sendEvent(window, event)
    return event


def let_go(window: QWidget, mime: QMimeData) -> QDropEvent:
    event = QDropEvent(
        QPoint(600, 300).toPointF(),
        Qt.DropAction.CopyAction | Qt.DropAction.MoveAction,
        mime,
        Qt.MouseButton.LeftButton,
        Qt.KeyboardModifier.NoModifier,
    )
    QApplication.sendEvent(window, event)
    return event


def test_files_over_the_window_are_told_and_taken_when_they_fall(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    controller = make_window()
    folder, table = tmp_path / "语料 one", tmp_path / "chats.jsonl"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text("text " * 100, encoding="utf-8")
    table.write_text('{"prompt": "a", "response": "b"}\n', encoding="utf-8")
    mime = files(folder, table)
    entered = hover(controller.window, mime)
    assert entered.isAccepted()
    assert entered.dropAction() == Qt.DropAction.CopyAction  # never a move
    assert controller.setup_controller.drop_indicator.text == "Drop to train on it\n语料 one, chats.jsonl"
    QApplication.sendEvent(controller.window, QDragLeaveEvent())
    assert controller.setup_controller.drop_indicator.text == ""
    hover(controller.window, mime)
    let_go(controller.window, mime)
    assert controller.setup_controller.drop_indicator.text == ""
    assert controller.form.data == [str(folder), str(table)]
    seen = controller.window.setup.data.summary
    qtbot.waitUntil(lambda: seen.text() == "Text, JSON Lines · 4 files · 1.5 KiB", timeout=5_000)
    assert table.exists()


def test_a_link_is_no_file(make_window: MakeWindow) -> None:
    controller = make_window()
    mime = QMimeData()
    mime.setUrls([QUrl("https://example.org/data.txt")])
    hover(controller.window, mime)
    let_go(controller.window, mime)
    assert controller.setup_controller.drop_indicator.text == ""
    assert controller.form.data == ["builtin:python"]


def test_a_source_that_is_gone_is_told_at_once(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    controller = make_window()
    controller.form.add_data([str(tmp_path / "gone.csv")])
    seen = controller.window.setup.data.summary
    qtbot.waitUntil(lambda: seen.text() == "Not found: gone.csv", timeout=5_000)
    assert seen.objectName() == "warnText"


def test_a_source_that_is_gone_keeps_start_from_being_pressed_until_it_is_back(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    text = tmp_path / "书.txt"
    text.write_text("春天来了。\n" * 50, encoding="utf-8")
    controller = make_window()
    bar = controller.window.run_bar
    controller.form.add_data([str(text), str(tmp_path / "gone.csv")])
    qtbot.waitUntil(lambda: not bar.start.isEnabled(), timeout=5_000)
    assert bar.start.toolTip() == "Not found: gone.csv"
    assert bar.reason_label.text() == "Start is not possible yet: Not found: gone.csv"
    assert not bar.check.isEnabled()
    click(qtbot, bar.show_reason_button)
    sources = controller.window.setup.data.list
    assert controller.window.focusWidget() is sources
    qtbot.keyClick(sources, Qt.Key.Key_Delete)  # it is chosen
    assert controller.form.data == [str(text)]
    qtbot.waitUntil(bar.start.isEnabled, timeout=10_000)
    controller.form.undo()
    qtbot.waitUntil(lambda: not bar.start.isEnabled(), timeout=10_000)
    (tmp_path / "gone.csv").write_text("text\na\n", encoding="utf-8")
    qtbot.waitUntil(bar.start.isEnabled, timeout=10_000)
    assert not bar.reason_label.isVisible()


def test_one_click_looks_at_the_data(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(look="look")
    click(qtbot, controller.window.setup.data.preview_button)
    assert controller.window.tabs.currentWidget() is controller.window.pages["data"]
    assert controller.preview_job.running is not None
    qtbot.waitUntil(lambda: controller.preview_job.running is None, timeout=30_000)


def test_a_file_on_a_field_for_a_path_becomes_its_text(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    controller = make_window()
    controller.window.show_page("settings")
    qtbot.waitUntil(lambda: controller.window.advanced.is_built, timeout=10_000)
    fields = {field.knob.name: field.editor for field in controller.window.advanced.fields}
    line = fields["tokenizer"]
    assert isinstance(line, QLineEdit)
    mime = files(tmp_path / "tokenizer.json")
    hover(line, mime)
    let_go(line, mime)
    assert controller.form.changes() == {"tokenizer": str(tmp_path / "tokenizer.json")}
    assert not fields["batch_size"].acceptDrops()  # there it is data, as everywhere
