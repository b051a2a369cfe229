"""Earlier runs: listed, opened with their plots, resumed."""

from __future__ import annotations

from pathlib import Path

from demo_run import write_run
from PySide6.QtCore import QTimer
from pytestqt.qtbot import QtBot
from runs_page import names, press

from app.controller import Controller
from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow


def write_runs(home: Path) -> None:
    write_run(home / "runs" / "晚间-长跑", "a6000", ["D:/a.parquet"], steps=3000, every=5, done=False, age_s=100)
    write_run(home / "runs" / "done-run", "quickstart", ["builtin:python"], steps=300, every=5, gpu=False, age_s=9000)


def texts(controller: Controller) -> list[list[str]]:
    model = controller.window.runs.model
    return [
        [model.data(model.index(row, column)) for column in range(model.columnCount())]
        for row in range(model.rowCount())
    ]


def choose(qtbot: QtBot, controller: Controller, name: str) -> None:
    page = controller.window.runs
    qtbot.waitUntil(lambda: name in names(page))
    page.table.selectRow(names(page).index(name))


def test_runs_are_listed_newest_first_with_their_state(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    write_runs(own_folders)
    controller = make_window()
    qtbot.waitUntil(lambda: len(texts(controller)) == 2)
    first, second = texts(controller)
    assert first[1:4] == ["晚间-长跑", "Interrupted", "3,000 / 4,800"]
    assert second[1:4] == ["done-run", "Finished", "300 / 300"]
    assert "Python standard library (built-in)" in second


def test_without_runs_the_page_shows_a_placeholder(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    controller.window.show_page("runs")
    qtbot.waitUntil(controller.window.runs.empty.isVisible)
    assert "No runs yet" in controller.window.runs.empty.text()


def test_opening_a_long_run_does_not_block_the_window(make_window: MakeWindow, qtbot: QtBot, own_folders: Path) -> None:
    write_run(own_folders / "runs" / "long", "a6000", ["D:/a.parquet"], steps=20_000, every=1)
    controller = make_window()
    fractions = set()  # loaded at each iteration of the event loop
    timer = QTimer(controller, interval=5)

    def record_fraction() -> None:
        if controller.viewed_run is not None:
            fractions.add(controller.viewed_run.loaded_fraction)

    timer.timeout.connect(record_fraction)
    timer.start()
    controller.window.show_page("runs")
    choose(qtbot, controller, "long")
    press(qtbot, controller, "openRun")
    qtbot.waitUntil(
        lambda: controller.viewed_run is not None and controller.viewed_run.loaded_fraction == 1.0, timeout=30_000
    )
    x, _ = controller.shown_record.metrics.series("train_loss")
    assert len(x) == 20_000
    assert len(fractions - {0.0, 1.0}) >= 5


def test_a_run_whose_folder_disappears_while_loading_is_closed(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    write_run(own_folders / "runs" / "gone", "a6000", ["D:/a.parquet"], steps=20_000, every=1)
    controller = make_window()
    controller.open_run(own_folders / "runs" / "gone")
    assert controller.viewed_run is not None
    (own_folders / "runs" / "gone").rename(own_folders / "elsewhere")
    qtbot.waitUntil(lambda: controller.viewed_run is None, timeout=30_000)


def test_an_interrupted_run_can_be_resumed(make_window: MakeWindow, qtbot: QtBot, own_folders: Path) -> None:
    write_runs(own_folders)
    controller = make_window("echo")
    choose(qtbot, controller, "done-run")
    assert not controller.window.runs.resume.isEnabled()
    choose(qtbot, controller, "晚间-长跑")
    controller.window.show_page("runs")
    press(qtbot, controller, "resumeRun")
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.TRAINING, timeout=20_000)
    arguments = controller.active_run.process.arguments
    assert arguments[arguments.index("--resume") + 1].endswith("晚间-长跑")
    assert len(controller.active_run.record.samples) > 0  # recorded before the interruption


def test_closing_an_earlier_run_shows_the_current_one(make_window: MakeWindow, qtbot: QtBot, own_folders: Path) -> None:
    write_runs(own_folders)
    controller = make_window()
    controller.open_run(own_folders / "runs" / "done-run")
    qtbot.waitUntil(lambda: controller.viewed_run is not None and controller.viewed_run.loaded_fraction == 1.0)
    assert not controller.window.viewed_run_bar.buttons["resumeViewed"].isVisible()  # it is finished
    press(qtbot, controller, "backToCurrent")
    assert controller.viewed_run is None
    assert controller.window.viewed_run_bar.isHidden()


def test_opening_a_folder_without_a_run_shows_an_error(make_window: MakeWindow, tmp_path: Path) -> None:
    controller = make_window()
    controller.open_run(tmp_path / "nowhere")
    assert "There is no run" in controller.window.banners.contents[0].format_text()
