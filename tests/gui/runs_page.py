"""Helpers for tests of the runs page."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import yaml
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.pages.runs.page import RunsPage
from tests.gui.conftest import click
from tests.gui.demo_run import write_run
from trainer_core.runs import checkpoint_dir


def add_run(
    home: Path, name: str, age_s: float = 1000.0, *, done: bool = True, steps: int = 60, **knobs: object
) -> Path:
    """Write a run with checkpoints at a third of its steps and at its end. `knobs` override its settings."""
    run = write_run(
        home / "runs" / name, "cpu", ["D:/资料/books.jsonl"], steps=steps, every=5, gpu=False, done=done, age_s=age_s
    )
    third = run.checkpoints / checkpoint_dir.folder_name(steps // 3)
    third.mkdir()
    (third / "model.safetensors").write_bytes(b"\0" * 2048)
    checkpoint_dir.write_manifest(third, steps // 3, "best", 2.5)
    config = yaml.safe_load(run.config.read_text(encoding="utf-8"))
    run.config.write_text(yaml.safe_dump({**config, **knobs}, allow_unicode=True), encoding="utf-8")
    return run.path


def lock_run(path: Path) -> None:
    """Lock a run as if this process trained it."""
    owner = {"pid": os.getpid(), "started": psutil.Process().create_time()}
    (path / "run.lock").write_text(json.dumps(owner), encoding="utf-8")


def open_page(qtbot: QtBot, controller: Controller, count: int) -> RunsPage:
    page = controller.window.runs
    controller.window.show_page("runs")
    qtbot.waitUntil(lambda: len(page.table.shown_rows()) == count, timeout=10_000)
    return page


def focus_table(qtbot: QtBot, page: RunsPage) -> None:
    page.window().activateWindow()
    page.table.setFocus()
    qtbot.waitUntil(page.table.hasFocus)


def names(page: RunsPage) -> list[str]:
    return [row.run.name for row in page.table.shown_rows()]


def press_button(qtbot: QtBot, controller: Controller, name: str) -> None:
    """Click the button with an object name."""
    button = controller.window.findChild(QPushButton, name)
    assert button is not None
    page = controller.window.runs

    def is_enabled() -> None:
        selected = [row.run.name for row in page.table.selected_rows()]
        assert button.isEnabled(), f"{name} is disabled; selected: {selected} of {names(page)}"

    qtbot.waitUntil(is_enabled, timeout=10_000)
    click(qtbot, button)


def message(page: RunsPage) -> str:
    return page.message_bar.text.text() if page.message_bar.isVisible() else ""
