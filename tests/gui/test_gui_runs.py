"""Earlier runs: listed, opened with their plots, resumed."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QTimer
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow, replace_trainer, wait_for_state, wait_until_loaded
from tests.gui.demo_run import write_run
from tests.gui.runs_page import names, press_button
from tests.gui.test_gui_resuming import RESUMED_TRAINER


def write_runs(home: Path) -> None:
    write_run(home / "runs" / "晚间-长跑", "a6000", ["D:/a.parquet"], steps=3000, every=5, done=False, age_s=100)
    write_run(home / "runs" / "done-run", "quickstart", ["builtin:python"], steps=300, every=5, gpu=False, age_s=9000)


def table_texts(controller: Controller) -> list[list[str]]:
    model = controller.window.runs.model
    return [
        [model.data(model.index(row, column)) for column in range(model.columnCount())]
        for row in range(model.rowCount())
    ]


def select_run(qtbot: QtBot, controller: Controller, name: str) -> None:
    page = controller.window.runs
    qtbot.waitUntil(lambda: name in names(page))
    page.table.selectRow(names(page).index(name))


def test_runs_are_listed_newest_first_with_their_state(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    write_runs(home)
    controller = make_window()
    qtbot.waitUntil(lambda: len(table_texts(controller)) == 2)
    first, second = table_texts(controller)
    assert first[1:4] == ["晚间-长跑", "Interrupted", "3,000 / 4,800"]
    assert second[1:4] == ["done-run", "Finished", "300 / 300"]
    assert "Python standard library (built-in)" in second


def test_without_runs_the_page_shows_a_placeholder(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    controller.window.show_page("runs")
    qtbot.waitUntil(controller.window.runs.empty.isVisible)
    assert "No runs yet" in controller.window.runs.empty.text()


def test_opening_a_long_run_does_not_block_the_window(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    write_run(home / "runs" / "long", "a6000", ["D:/a.parquet"], steps=20_000, every=1)
    controller = make_window()
    fractions = set()  # loaded fraction, sampled by a timer
    timer = QTimer(controller, interval=5)

    def record_fraction() -> None:
        if controller.viewed_run is not None:
            fractions.add(controller.viewed_run.loaded_fraction)

    timer.timeout.connect(record_fraction)
    timer.start()
    controller.window.show_page("runs")
    select_run(qtbot, controller, "long")
    press_button(qtbot, controller, "openRun")
    wait_until_loaded(qtbot, controller)
    x, _ = controller.shown_record.metrics.series("train_loss")
    assert len(x) == 20_000
    assert len(fractions - {0.0, 1.0}) >= 5


def test_a_run_whose_folder_is_moved_while_loading_is_closed(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    write_run(home / "runs" / "moved", "a6000", ["D:/a.parquet"], steps=20_000, every=1)
    controller = make_window()
    controller.open_run(home / "runs" / "moved")
    assert controller.viewed_run is not None
    (home / "runs" / "moved").rename(home / "elsewhere")
    qtbot.waitUntil(lambda: controller.viewed_run is None, timeout=30_000)


def test_an_interrupted_run_can_be_resumed(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    write_runs(home)
    controller = make_window("echo")
    replace_trainer(controller, home / "trainer.py", RESUMED_TRAINER)
    select_run(qtbot, controller, "done-run")
    assert not controller.window.runs.resume.isEnabled()
    select_run(qtbot, controller, "晚间-长跑")
    controller.window.show_page("runs")
    press_button(qtbot, controller, "resumeRun")
    wait_for_state(qtbot, controller, RunState.TRAINING)
    arguments = controller.active_run.process.arguments
    assert arguments[arguments.index("--resume") + 1].endswith("晚间-长跑")
    assert len(controller.active_run.record.samples) > 0  # samples before the interruption


def test_resuming_a_missing_run_does_not_resume_the_displayed_one(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    write_run(home / "runs" / "long", "a6000", ["D:/a.parquet"], steps=20_000, every=1, done=False)
    controller = make_window("echo")
    controller.open_run(home / "runs" / "long")
    controller.resume_run(home / "runs" / "missing")
    assert "There is no run" in controller.window.banners.contents[0].format_text()
    wait_until_loaded(qtbot, controller)
    assert controller.active_run.machine.state is RunState.IDLE


def test_closing_an_earlier_run_shows_the_current_run(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    write_runs(home)
    controller = make_window()
    controller.open_run(home / "runs" / "done-run")
    wait_until_loaded(qtbot, controller)
    assert not controller.window.viewed_run_bar.buttons["resumeViewed"].isVisible()  # the run is finished
    press_button(qtbot, controller, "backToCurrent")
    assert controller.viewed_run is None
    assert controller.window.viewed_run_bar.isHidden()


def test_the_plots_do_not_show_the_name_of_a_closed_run(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    write_runs(home)
    controller = make_window()
    plots = controller.window.plots
    advice = plots.charts["loss"]._placeholder.text()
    controller.open_run(home / "runs" / "done-run")
    wait_until_loaded(qtbot, controller)
    controller.window.runs.set_overlay_shown([home / "runs" / "晚间-长跑"], on=True)
    qtbot.waitUntil(lambda: plots.run_names.summary() == "done-run; 晚间-长跑", timeout=10_000)
    press_button(qtbot, controller, "backToCurrent")
    assert (plots.run_names.summary(), plots.run_name) == ("晚间-长跑", "")
    assert plots.charts["loss"]._placeholder.text() == advice


def test_opening_a_folder_without_a_run_shows_an_error(make_window: MakeWindow, tmp_path: Path) -> None:
    controller = make_window()
    controller.open_run(tmp_path / "missing")
    assert "There is no run" in controller.window.banners.contents[0].format_text()
