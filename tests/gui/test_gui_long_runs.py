"""Opening a long run: progress, complete content, no blocked event loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.history import run_list
from app.core.run_loader import RunRecord
from app.pages.plots.overlay_controller import OverlayController
from app.window.run_viewer import ViewedRun
from tests.gui import demo_run
from tests.gui.conftest import MakeWindow
from tests.process.recording import LONGEST_GAP_S, Heartbeat

STEPS = 20_000


@pytest.fixture
def long_run(own_folders: Path) -> Path:
    path = own_folders / "runs" / "长 运行"
    demo_run.write_run(path, "quickstart", ["builtin:python"], steps=STEPS, every=1)
    return path


def open_run(controller: Controller, qtbot: QtBot, path: Path) -> list[float]:
    """Open a run and return the reported fractions."""
    fractions: list[float] = []
    controller._run_viewer._run_loader.progressed.connect(fractions.append)
    controller.open_run(path)
    qtbot.waitUntil(
        lambda: controller.viewed_run is not None and controller.viewed_run.loaded_fraction == 1.0, timeout=20_000
    )
    return fractions


def test_a_long_run_opens_completely_without_blocking_the_window(
    make_window: MakeWindow, qtbot: QtBot, long_run: Path
) -> None:
    controller, heart = make_window(), Heartbeat()
    fractions = open_run(controller, qtbot, long_run)
    assert heart.longest_gap_s < LONGEST_GAP_S
    assert fractions == sorted(fractions)
    assert len(fractions) > 3
    whole = RunRecord()
    for events, _ in run_list.read_events(long_run):
        for event in events:
            whole.add(event)
    shown = controller.shown_record
    for name in ("train_loss", "grad_norm", "time_backward", "eval_loss", "rss"):
        for mine, expected in zip(shown.metrics.series(name), whole.metrics.series(name), strict=True):
            np.testing.assert_array_equal(mine, expected, err_msg=name)
    assert shown.metrics.series("train_loss")[0].size == STEPS
    assert shown.metrics.best_eval() == whole.metrics.best_eval()
    assert list(shown.log) == list(whole.log)
    assert shown.samples == whole.samples


def test_another_run_can_be_opened_while_a_long_one_loads(
    make_window: MakeWindow, qtbot: QtBot, long_run: Path
) -> None:
    other = long_run.with_name("other")
    demo_run.write_run(other, "quickstart", ["builtin:python"], steps=2000, every=1)
    controller = make_window()
    controller.open_run(long_run)
    open_run(controller, qtbot, other)
    viewing = controller.viewed_run
    assert isinstance(viewing, ViewedRun)
    assert viewing.summary.path == other
    assert controller.shown_record.metrics.series("train_loss")[0].size == 2000


def test_a_long_overlay_is_downsampled_and_keeps_its_extremes(qtbot: QtBot, long_run: Path) -> None:
    history = run_list.RunHistory(long_run.parent)
    history.refresh()
    overlays = OverlayController(history)
    overlays.set_shown([long_run], on=True)
    qtbot.waitUntil(lambda: len(overlays.visible_overlays(None)) == 1, timeout=20_000)
    whole = RunRecord()
    for events, _ in run_list.read_events(long_run):
        for event in events:
            whole.add(event)
    x, y = overlays.visible_overlays(None)[0].store.series("train_loss")
    everything = whole.metrics.series("train_loss")[1]
    assert x.size < STEPS
    assert x[-1] == STEPS
    assert (y.min(), y.max()) == (everything.min(), everything.max())
