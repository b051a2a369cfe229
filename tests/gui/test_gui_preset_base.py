"""A run whose base model is a preset, by clicks and with the real trainer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow, click, wait_for_state
from tests.gui.test_gui_presets import select_preset
from trainer_core.runs.run_dir import list_runs

STATUS = re.compile(r"training the base model  ·  ([2-9]|\d\d+) / 400 steps")


@pytest.mark.timeout(300)
def test_start_trains_the_base_first_and_stop_saves_it(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    controller = make_window(None)
    bar = controller.window.run_bar
    select_preset(qtbot, controller, "quickstart_finetune")
    for _ in range(2):
        click(qtbot, bar.start)
        qtbot.waitUntil(lambda: bool(STATUS.fullmatch(bar.status_label.text())), timeout=120_000)
        assert controller.active_run.machine.state is RunState.PREPARING
        assert bar.progress_bar.value() > 0
        click(qtbot, bar.stop)
        wait_for_state(qtbot, controller, RunState.STOPPED, 60.0)
    runs = list_runs(home / "runs")
    [base] = [run for run in runs if run.preset == "quickstart_sft"]  # the second start has resumed it
    assert (base.state, base.resumable) == ("stopped", True)
    assert len([run for run in runs if run.preset == "quickstart_finetune"]) == 2


@pytest.mark.timeout(1500)
def test_clicks_teach_a_model_what_its_base_did_not_know(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    controller = make_window(None)
    window, shown = controller.window, controller.window.plots.tiles.tiles["eval"].caption
    select_preset(qtbot, controller, "quickstart_finetune")
    click(qtbot, window.run_bar.start)
    qtbot.waitUntil(lambda: shown.text().startswith("exact match"), timeout=900_000)  # before the first step
    assert exact_match(shown.text()) < 20
    wait_for_state(qtbot, controller, RunState.FINISHED, 600.0)
    controller.render()
    assert exact_match(shown.text()) > 90
    trained = window.setup.model.trained
    qtbot.waitUntil(lambda: trained.text().startswith("Trained: 163,840 weights"), timeout=20_000)
    states = {run.preset: run.state for run in list_runs(home / "runs")}
    assert states == {"quickstart_sft": "finished", "quickstart_finetune": "finished"}


def exact_match(caption: str) -> int:
    """Percentage in the caption of a tile."""
    return int(caption.removeprefix("exact match ").partition("%")[0])
