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
from tests.gui.conftest import MakeWindow, wait_until_loaded
from tests.process.recording import LONGEST_GAP_S, Heartbeat

STEPS = 20_000


@pytest.fixture
def long_run(home: Path) -> Path:
    path = home / "runs" / "长 运行"
    demo_run.write_run(path, "quickstart", ["builtin:python"], steps=STEPS, every=1)
    return path


def read_record(path: Path) -> RunRecord:
    """Read all events of a run."""
    record = RunRecord()
    for events, _ in run_list.read_events(path):
        for event in events:
            record.add(event)
    return record


def open_run(controller: Controller, qtbot: QtBot, path: Path) -> list[float]:
    """Open a run. Returns the reported fractions."""
    fractions: list[float] = []
    controller._run_viewer._run_loader.progressed.connect(fractions.append)
    controller.open_run(path)
    wait_until_loaded(qtbot, controller)
    return fractions


def test_a_long_run_opens_completely_without_blocking_the_window(
    make_window: MakeWindow, qtbot: QtBot, long_run: Path
) -> None:
    controller, heartbeat = make_window(), Heartbeat()
    fractions = open_run(controller, qtbot, long_run)
    assert heartbeat.longest_gap_s < LONGEST_GAP_S
    assert fractions == sorted(fractions)
    assert len(fractions) > 3
    expected = read_record(long_run)
    record = controller.shown_record
    for name in ("train_loss", "grad_norm", "time_backward", "eval_loss", "rss"):
        for actual, desired in zip(record.metrics.series(name), expected.metrics.series(name), strict=True):
            np.testing.assert_array_equal(actual, desired, err_msg=name)
    assert record.metrics.series("train_loss")[0].size == STEPS
    assert record.metrics.best_eval() == expected.metrics.best_eval()
    assert list(record.log) == list(expected.log)
    assert record.samples == expected.samples


def test_another_run_can_be_opened_while_a_long_one_loads(
    make_window: MakeWindow, qtbot: QtBot, long_run: Path
) -> None:
    other = long_run.with_name("other")
    demo_run.write_run(other, "quickstart", ["builtin:python"], steps=2000, every=1)
    controller = make_window()
    controller.open_run(long_run)
    open_run(controller, qtbot, other)
    viewed_run = controller.viewed_run
    assert isinstance(viewed_run, ViewedRun)
    assert viewed_run.summary.path == other
    assert controller.shown_record.metrics.series("train_loss")[0].size == 2000


def test_a_long_overlay_is_downsampled_and_keeps_its_extremes(qtbot: QtBot, long_run: Path) -> None:
    history = run_list.RunList(long_run.parent)
    history.refresh()
    overlays = OverlayController(history)
    overlays.set_shown([long_run], on=True)
    qtbot.waitUntil(lambda: len(overlays.visible_overlays(None)) == 1, timeout=20_000)
    x, y = overlays.visible_overlays(None)[0].store.series("train_loss")
    losses = read_record(long_run).metrics.series("train_loss")[1]
    assert x.size < STEPS
    assert x[-1] == STEPS
    assert (y.min(), y.max()) == (losses.min(), losses.max())
