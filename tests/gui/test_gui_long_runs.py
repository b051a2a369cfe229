"""A run of very many events: opened through arrays that other processes make, and again from those at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.opening import RunRecord
from app.state.measurements import digest
from app.state.runs import history
from app.views.viewing import Viewing
from tests.gui import demo_run
from tests.gui.conftest import MakeWindow
from tests.unit.test_state_digest import assert_same
from trainer_core import protocol
from trainer_core.runs import run_dir
from trainer_core.runs.run_dir import RunDir


@pytest.fixture
def long_run(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that counts as long."""
    monkeypatch.setattr(history, "LONG_BYTES", 1000)
    path = own_folders / "runs" / "长 运行"
    demo_run.write_run(path, "quickstart", ["builtin:python"], steps=2000, every=1)
    return path


def opened(controller: Controller, qtbot: QtBot, path: Path) -> list[float]:
    """Open a run; the shares that were told on the way."""
    told: list[float] = []
    controller._earlier._opener.progressed.connect(told.append)
    controller.open_run(path)
    qtbot.waitUntil(lambda: controller.viewing is not None and controller.viewing.loaded == 1.0, timeout=20_000)
    assert controller.shown.metrics.series("train_loss")[0].size == 2000
    assert controller.shown.metrics.best_eval() is not None
    assert len(controller.shown.samples) == 100
    return told


def test_a_long_run_opens_with_progress_and_leaves_arrays_for_the_next_time(
    make_window: MakeWindow, qtbot: QtBot, long_run: Path
) -> None:
    controller = make_window()
    told = opened(controller, qtbot, long_run)
    assert told == sorted(told)
    made = {path: path.stat().st_mtime_ns for path in digest.known(long_run)}
    assert made
    opened(controller, qtbot, long_run)
    assert {path: path.stat().st_mtime_ns for path in digest.known(long_run)} == made


def test_parts_are_read_while_others_are_made_and_are_the_same_run(
    make_window: MakeWindow, qtbot: QtBot, long_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "_PART", 50_000)
    controller = make_window()
    told = opened(controller, qtbot, long_run)
    assert told == sorted(told)
    assert len(digest.known(long_run)) > 5
    events = RunRecord()
    for event in history.load_events(long_run):
        events.add(event)
    assert_same(controller.shown, events)


def test_a_run_that_grew_while_it_was_opened_is_shown_as_it_is(
    make_window: MakeWindow, qtbot: QtBot, long_run: Path
) -> None:
    controller = make_window()
    controller.open_run(long_run)
    late = protocol.Eval(t=2e9, seq=10**6, step=2000, loss=0.001, perplexity=1.0, tokens=9, seconds=1.0)
    with RunDir(long_run).events.open("ab") as file:
        file.write(protocol.encode(late))
    qtbot.waitUntil(lambda: controller.viewing is not None and controller.viewing.loaded == 1.0, timeout=20_000)
    best = controller.shown.metrics.best_eval()
    assert best is not None
    assert best.value == 0.001


def test_of_a_run_that_grows_no_arrays_are_made_that_would_be_outdated_at_once(
    make_window: MakeWindow, qtbot: QtBot, long_run: Path
) -> None:
    with run_dir.lock(RunDir(long_run)):
        opened(make_window(), qtbot, long_run)
    assert not (long_run / digest.FOLDER).exists()


def test_damaged_arrays_are_put_aside_for_the_events(make_window: MakeWindow, qtbot: QtBot, long_run: Path) -> None:
    controller = make_window()
    opened(controller, qtbot, long_run)
    damaged = digest.known(long_run)[-1]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-2000] + bytes(2000))
    opened(controller, qtbot, long_run)
    assert not damaged.exists()


def test_where_no_arrays_can_be_written_the_events_are_read(
    make_window: MakeWindow, qtbot: QtBot, long_run: Path
) -> None:
    (long_run / digest.FOLDER).write_text("a file in their place", encoding="utf-8")
    opened(make_window(), qtbot, long_run)


def test_another_run_may_be_opened_while_a_long_one_is(make_window: MakeWindow, qtbot: QtBot, long_run: Path) -> None:
    other = long_run.with_name("other")
    demo_run.write_run(other, "quickstart", ["builtin:python"], steps=2000, every=1)
    controller = make_window()
    controller.open_run(other)
    opened(controller, qtbot, long_run)
    viewing = controller.viewing
    assert isinstance(viewing, Viewing)
    assert viewing.summary.path == long_run
