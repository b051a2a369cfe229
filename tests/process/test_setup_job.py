"""`SetupJob` with real processes, which have descendants."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from app.services import setup_job
from app.services.setup_job import SetupJob
from tests.gui.setup_process import SetupProcess


def test_a_pause_ends_all_processes_and_another_mirror_begins_with_a_new_one(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = SetupProcess(tmp_path)
    monkeypatch.setattr(setup_job, "LAUNCHER", setup.path)
    parent = QObject()
    job = SetupJob(parent)
    job.start()
    qtbot.waitUntil(lambda: len(setup.calls) == 1, timeout=30_000)
    setup.emit("text", text="正在下载")
    qtbot.waitUntil(lambda: list(job.lines) == ["正在下载"])
    job.pause()
    qtbot.waitUntil(lambda: not setup.is_running(0))
    job.choose_mirror("")
    qtbot.waitUntil(lambda: len(setup.calls) == 2, timeout=30_000)
    assert setup.calls[1][0] == ["setup", "--output", "json", "--mirror", "none"]
    job.choose_mirror("tsinghua")
    qtbot.waitUntil(lambda: len(setup.calls) == 3, timeout=30_000)
    assert not setup.is_running(1)
    assert job.state == "running"
    job.shutdown()
    qtbot.waitUntil(lambda: not setup.is_running(2))
