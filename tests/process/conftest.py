"""Fixtures of the process tests: real children under a real event loop."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import pytest
from pytestqt.qtbot import QtBot
from recording import Heartbeat, Recorded, Run


@pytest.fixture
def run_fake(qtbot: QtBot) -> Iterator[Run]:
    """Start a fake trainer in a mode; it is killed at the end of the test."""
    started: list[Recorded] = []

    def start(mode: str, *arguments: str, keep: bool = True) -> Recorded:
        started.append(Recorded(mode, qtbot, arguments, keep=keep))
        return started[-1]

    yield start
    for recorded in started:
        recorded.process.shutdown(grace_s=0.1)


@pytest.fixture
def heartbeat(qtbot: QtBot) -> Heartbeat:
    return Heartbeat()
