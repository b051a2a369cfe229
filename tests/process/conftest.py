"""Fixtures of the process tests: real children under a real event loop."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import pytest
from pytestqt.qtbot import QtBot
from recording import Heartbeat, RecordedProcess, StartFake


@pytest.fixture
def run_fake(qtbot: QtBot) -> Iterator[StartFake]:
    """Starts fake trainers, which are killed at the end of the test."""
    processes: list[RecordedProcess] = []

    def start(mode: str, *arguments: str, keep_events: bool = True) -> RecordedProcess:
        processes.append(RecordedProcess(mode, qtbot, arguments, keep_events=keep_events))
        return processes[-1]

    yield start
    for recorded in processes:
        recorded.process.shutdown(grace_s=0.1)


@pytest.fixture
def heartbeat(qtbot: QtBot) -> Heartbeat:
    return Heartbeat()
