"""TensorBoard, opened with a click: the real server, read through its own interface instead of a browser."""

from __future__ import annotations

import importlib.util
import json
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import psutil
import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from pytestqt.qtbot import QtBot

from app.controller import Controller
from tests.gui.conftest import MakeWindow, click, wait_until_loaded
from tests.gui.runs_page import add_run, open_page
from trainer_core.runs.run_dir import RunDir


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that were opened in the browser."""
    addresses: list[str] = []

    def open_url(url: QUrl) -> bool:
        addresses.append(bytes(url.toEncoded().data()).decode("ascii"))
        return True

    monkeypatch.setattr(QDesktopServices, "openUrl", open_url)
    return addresses


def write_events(path: Path) -> None:
    """Turn the setting on, and write event files of three steps, the last two of which were repeated after a resume."""
    events = path / "events.jsonl"
    lines = events.read_text(encoding="utf-8").replace('"use_tensorboard":false', '"use_tensorboard":true')
    events.write_text(lines, encoding="utf-8", newline="")
    from trainer_core.trackers import tensorboard

    for first, losses in ((1, (3.0, 2.0, 1.0)), (2, (2.5, 1.5))):
        tracker = tensorboard.start(RunDir(path), {}, print)
        tracker.rewind(first)
        for step, loss in enumerate(losses, first):
            tracker.log_metrics(step, {"train/loss": loss}, 1.8e9)
        tracker.finish(succeeded=True)


def select_run(qtbot: QtBot, controller: Controller, run: Path) -> Any:
    page = open_page(qtbot, controller, len(list(run.parent.iterdir())))
    page.table.select([run])
    qtbot.waitUntil(page.run_actions["tensorboard"].isEnabled)
    return page


def read(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address.partition('?')[0]}data/{path}", timeout=20) as response:
        return json.load(response)


def banner(controller: Controller) -> str:
    return " ".join(content.format_text() for content in controller.window.banners.contents)


def test_a_run_opens_in_tensorboard_which_ends_with_the_window(
    make_window: MakeWindow, qtbot: QtBot, home: Path, opened: list[str]
) -> None:
    run, other = add_run(home, "长跑 (1)"), add_run(home, "other", 2000.0)
    for path in (run, other):
        write_events(path)
    controller = make_window()
    page = select_run(qtbot, controller, run)
    page.run_actions["tensorboard"].trigger()
    page.run_actions["tensorboard"].trigger()  # while it starts
    qtbot.waitUntil(lambda: len(opened) == 1, timeout=60_000)
    page.table.select([run, other])
    page.run_actions["tensorboard"].trigger()
    assert len(opened) == 2  # the same server
    first, second = map(urlsplit, opened)
    assert (first.hostname, first.netloc) == ("127.0.0.1", second.netloc)
    assert parse_qs(first.query)["runFilter"] == [r"^(长跑\ \(1\))$"]
    assert parse_qs(second.query)["runFilter"] == [r"^(长跑\ \(1\)|other)$"]
    qtbot.waitUntil(lambda: sorted(read(opened[0], "runs")) == ["other", "长跑 (1)"], timeout=20_000)
    scalars = read(opened[0], f"plugin/scalars/scalars?tag=train%2Floss&run={quote(run.name)}")
    assert [(step, loss) for _, step, loss in scalars] == [(1, 3.0), (2, 2.5), (3, 1.5)]
    controller.open_run(run)
    controller.window.show_page("plots")
    click(qtbot, controller.window.plots.tensorboard_button)
    assert opened.pop() == opened[0]
    page.folders.rename(other, "renamed")  # on Windows, not while a file in the folder is open
    assert controller.tensorboard._process is None
    assert (home / "runs" / "renamed").is_dir()
    page.table.select([run])
    page.run_actions["tensorboard"].trigger()
    qtbot.waitUntil(lambda: len(opened) == 3, timeout=60_000)
    process = controller.tensorboard._process
    assert process is not None
    members = [psutil.Process(process.processId()), *psutil.Process(process.processId()).children(recursive=True)]
    controller.shutdown()
    assert psutil.wait_procs(members, timeout=10)[1] == []
    assert banner(controller) == ""


def test_a_run_without_event_files_names_the_setting(
    make_window: MakeWindow, qtbot: QtBot, home: Path, opened: list[str]
) -> None:
    run = add_run(home, "plain")
    controller = make_window()
    controller.open_run(run)
    action = controller.window.menus.actions["tensorboard"]
    qtbot.waitUntil(action.isEnabled)
    wait_until_loaded(qtbot, controller)
    assert controller.window.plots.tensorboard_button.isHidden()
    action.trigger()
    assert banner(controller) == "plain has no event files for TensorBoard. Turn on “TensorBoard” before training."
    assert opened == []


def test_without_the_package_its_installation_is_named(
    make_window: MakeWindow, qtbot: QtBot, home: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(home, "run")
    write_events(run)
    controller = make_window()
    page = select_run(qtbot, controller, run)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    page.run_actions["tensorboard"].trigger()
    assert "-m pip install tensorboard" in banner(controller)


def test_a_server_that_does_not_start_is_one_sentence(
    make_window: MakeWindow, qtbot: QtBot, home: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(home, "run")
    write_events(run)
    broken = home / "packages" / "tensorboard"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('a broken package')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    controller = make_window()
    page = select_run(qtbot, controller, run)
    page.run_actions["tensorboard"].trigger()
    qtbot.waitUntil(lambda: banner(controller) != "", timeout=20_000)
    assert "TensorBoard could not be started: ImportError: a broken package." in banner(controller)
    assert opened == []
