"""Run events that cause a desktop notification, and its text."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.core.active_run import ActiveRun
from app.core.run_state import ProcessExited, ProcessStarted, RunInput, RunRequest
from app.core.settings import Settings
from app.pages.setup.form import SetupForm
from app.services.preview_job import CheckJob
from app.services.trainer_process import ProcessOutcome
from app.theme.palette import LIGHT
from app.window.desktop_controller import DesktopStatusController
from app.window.main_window import MainWindow
from app.window.notification_controller import NOTIFIED_ADVICE, NOTIFIED_WARNINGS, Notifier
from trainer_core import protocol
from trainer_core.messages import codes
from trainer_core.protocol import AnyEvent
from trainer_core.restart_policy import Restart

TIME = protocol.StepTime(data=1.0, transfer=0.0, forward=1.0, backward=1.0, optimizer=1.0, other=0.0)
DISK_WAITING = protocol.Warn(code="disk.waiting", params={"path": "D:", "needed_mib": 2, "free_mib": 1})


def hello(resumed: int | None = None) -> protocol.Hello:
    return protocol.Hello(
        pid=1, run_dir="runs/a", traindeck="1", python="3", torch="2", resumed_from_step=resumed,
        config={"max_steps": 100},
    )  # fmt: skip


def step(loss: float | None, number: int = 7) -> protocol.Step:
    return protocol.Step(
        step=number, epoch=0.1, tokens=1, samples=1, loss=loss, learning_rate=1.0, tokens_per_s=1.0, samples_per_s=1.0,
        time_ms=TIME,
    )  # fmt: skip


class Recorder:
    """Records the notifications of a run without a process."""

    def __init__(self, window: MainWindow, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[str, bool]] = []
        self.run = ActiveRun(None, window)
        status = DesktopStatusController(window, self.run)
        record = lambda notifier, text, *, warning=True: self.sent.append((text, warning))  # noqa: E731
        monkeypatch.setattr(Notifier, "notify", record)
        self.notifier = Notifier(window, self.run, status, Settings())

    def receive(self, *events: AnyEvent) -> list[str]:
        """Handle events. Returns the texts of their notifications."""
        del self.sent[:]
        for event in events:
            self.run.handle_event(event)
        return [text for text, _ in self.sent]

    def end(self, *inputs: RunInput) -> list[tuple[str, bool]]:
        """End a run with these events. Returns the (text, warning) of its notifications."""
        self.run.machine.feed(ProcessStarted("runs/a"), 0.0)
        for event in inputs:
            self.run.machine.feed(event, 1.0)
        del self.sent[:]
        self.run.ended.emit(ProcessOutcome(0, False, []))
        return self.sent


@pytest.fixture
def recorder(qapp: QApplication, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    window = MainWindow(form := SetupForm(), CheckJob(form), LIGHT)
    window.close_allowed = True
    qtbot.addWidget(window)
    return Recorder(window, monkeypatch)


def test_every_notified_code_has_a_message() -> None:
    assert set(codes()) >= NOTIFIED_WARNINGS | NOTIFIED_ADVICE


def test_only_the_end_of_a_normal_run_is_notified(recorder: Recorder) -> None:
    uneventful = (hello(), protocol.Phase(phase="training"), step(3.0), protocol.Warn(code="data.undecodable"))
    assert recorder.receive(*uneventful, protocol.Advice(code="advice.data_bound")) == []
    done = protocol.Done(reason="finished", steps=100, total_steps=100, best_loss=2.5, final_loss=2.75)
    [(text, warning)] = recorder.end(*uneventful, done, ProcessExited(0))
    assert not warning
    assert "100" in text
    assert "2.5000" in text


def test_a_full_disk_is_notified_once_until_space_is_available(recorder: Recorder) -> None:
    assert "D:" in recorder.receive(DISK_WAITING)[0]
    assert recorder.receive(DISK_WAITING) == []
    assert recorder.receive(protocol.Phase(phase="training"), DISK_WAITING) != []


def test_a_non_finite_loss_is_notified_once(recorder: Recorder) -> None:
    [text] = recorder.receive(step(None, 12), step(None, 13))
    assert "12" in text


def test_urgent_advice_is_notified_again_after_it_was_resolved(recorder: Recorder) -> None:
    thermal = protocol.Advice(code="advice.thermal")
    assert len(recorder.receive(thermal, thermal)) == 1
    assert len(recorder.receive(protocol.Advice(code="advice.thermal", resolved=True), thermal)) == 1


@pytest.mark.parametrize("exit_code", [7, -11])
def test_a_failure_is_notified_with_its_cause_unless_the_run_restarts(recorder: Recorder, exit_code: int) -> None:
    params: dict[str, protocol.Param] = {"path": "D:", "needed_mib": 2, "free_mib": 1}
    failed = (hello(), protocol.Error(code="disk.full", params=params, exit_code=exit_code), ProcessExited(exit_code))
    [(text, warning)] = recorder.end(*failed)
    assert "D:" in text
    assert warning
    assert recorder.end(hello(), ProcessExited(-11, crashed=True)) == [("The trainer exited unexpectedly.", True)]
    recorder.run.auto_restart.pending = Restart(1, 2, 1.0, "failure.crash", 4)
    assert recorder.end(*failed) == []


def test_a_stop_by_the_user_is_not_notified(recorder: Recorder) -> None:
    assert recorder.end(hello(), RunRequest.STOP, ProcessExited(3)) == []


def test_notifications_are_not_repeated_after_an_automatic_restart(recorder: Recorder) -> None:
    battery = protocol.Advice(code="advice.battery")
    assert len(recorder.receive(hello(), battery)) == 1
    recorder.run.auto_restart.pending = Restart(1, 2, 1.0, "failure.crash", 4)
    recorder.end(hello(), ProcessExited(-11, crashed=True))
    assert recorder.receive(hello(resumed=5), battery) == []
    assert len(recorder.receive(hello(), battery)) == 1
