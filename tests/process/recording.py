"""Records the events and the output of a real child process under a real event loop."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, QTimer
from pytestqt.qtbot import QtBot

from app.services.trainer_process import ProcessOutcome, TrainerProcess
from trainer_core import protocol

# Longest acceptable block of the event loop on a busy machine. Wine and CI on Windows are slower.
LONGEST_GAP_S = 2.0 if sys.platform == "win32" else 0.5
FAKE_TRAINER = Path(__file__).with_name("fake_trainer.py")


class RecordedProcess:
    """A started fake trainer, with its events and output in order."""

    def __init__(self, mode: str, qtbot: QtBot, arguments: tuple[str, ...] = (), *, keep_events: bool = True) -> None:
        self.qtbot = qtbot
        self.process = TrainerProcess(command=[sys.executable, "-u", "-X", "utf8", str(FAKE_TRAINER), mode])
        self.events: list[protocol.AnyEvent] = []
        self.output: list[str] = []
        self.incompatible: list[tuple[int, int]] = []
        self.outcomes: list[ProcessOutcome] = []
        if keep_events:
            self.process.event_received.connect(self.events.append)
        self.process.output_received.connect(self.output.append)
        self.process.protocol_incompatible.connect(self.incompatible.append)
        self.process.finished.connect(self.outcomes.append)
        assert self.process.start(arguments)

    def events_of(self, kind: type[protocol.Event]) -> list[protocol.AnyEvent]:
        return [event for event in self.events if isinstance(event, kind)]

    def wait_for(self, kind: type[protocol.Event], count: int = 1) -> protocol.AnyEvent:
        self.qtbot.waitUntil(lambda: len(self.events_of(kind)) >= count, timeout=20_000)
        return self.events_of(kind)[-1]

    def outcome(self, timeout_s: float = 30.0) -> ProcessOutcome:
        self.qtbot.waitUntil(lambda: bool(self.outcomes), timeout=int(1000 * timeout_s))
        assert len(self.outcomes) == 1
        return self.outcomes[0]


class Heartbeat(QObject):
    """A timer that measures its longest delay, and so the longest block of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.beats = 0
        self._longest_s = 0.0
        self._last = time.perf_counter()
        self._timer = QTimer(self)
        self._timer.setInterval(10)
        self._timer.timeout.connect(self._beat)
        self._timer.start()

    def _beat(self) -> None:
        self._longest_s = self.longest_gap_s
        self._last, self.beats = time.perf_counter(), self.beats + 1

    @property
    def longest_gap_s(self) -> float:
        """Includes the current delay: a blocked loop calls no timer."""
        return max(self._longest_s, time.perf_counter() - self._last)


StartFake = Callable[..., RecordedProcess]
