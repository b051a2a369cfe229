"""The countdown to an automatic restart in the window."""

from __future__ import annotations

import sys

from app.core.auto_restart import AutoRestart
from tests import events
from tests.events import checkpoint
from trainer_core import protocol

SEGFAULT = -0x3FFFFFFB if sys.platform == "win32" else 11  # as reported by QProcess


def hello(restarts: object = 2, resumed: int | None = None) -> protocol.Hello:
    return events.hello(config={"restarts": restarts}, resumed_from_step=resumed)


def crash(auto_restart: AutoRestart, now: float = 0.0) -> None:
    auto_restart.on_exited(SEGFAULT, now, crashed=True)


def started_run(*later_events: protocol.AnyEvent) -> AutoRestart:
    """Return an AutoRestart that has received `hello` and `later_events`."""
    auto_restart = AutoRestart()
    for event in (hello(), *later_events):
        auto_restart.add(event)
    return auto_restart


def test_a_crash_starts_a_countdown_to_a_restart() -> None:
    auto_restart = started_run(checkpoint(40))
    crash(auto_restart, now=100.0)
    pending = auto_restart.pending
    assert pending is not None
    assert (pending.attempt, pending.limit, pending.reason, pending.step) == (
        1,
        2,
        "failure.access_violation",
        40,
    )
    assert auto_restart.remaining_s(102.0) == 3.0
    assert auto_restart.remaining_s(200.0) == 0.0
    assert not auto_restart.is_due(104.0)
    assert auto_restart.is_due(105.0)


def test_the_countdown_can_be_skipped_or_cancelled() -> None:
    auto_restart = started_run()
    crash(auto_restart, now=10.0)
    auto_restart.skip_countdown()
    assert auto_restart.is_due(11.0)
    auto_restart.pending = None
    assert not auto_restart.is_due(99.0)


def test_the_number_of_restarts_without_progress_is_limited() -> None:
    auto_restart = started_run(checkpoint(40))
    for _ in range(2):
        crash(auto_restart)
        assert auto_restart.pending is not None
        auto_restart.on_restarted()
        auto_restart.add(hello(resumed=40))
    crash(auto_restart)
    assert auto_restart.pending is None
    assert auto_restart.gave_up is not None
    assert auto_restart.gave_up.attempts == 2


def test_a_new_checkpoint_resets_the_number_of_attempts() -> None:
    auto_restart = started_run(checkpoint(40))
    for step in (50, 60, 70, 80):
        crash(auto_restart)
        auto_restart.on_restarted()
        auto_restart.add(hello(resumed=step - 10))
        auto_restart.add(checkpoint(step))
    crash(auto_restart)
    assert auto_restart.pending is not None
    assert auto_restart.pending.attempt == 1


def test_permanent_failures_and_disabled_restarts_start_no_countdown() -> None:
    auto_restart = started_run()
    auto_restart.on_exited(7, 0.0, error="disk.full")
    assert auto_restart.pending is None
    for limit in (0, None, "many"):
        disabled = AutoRestart()
        disabled.add(hello(restarts=limit))
        crash(disabled)
        assert disabled.pending is None
        assert disabled.gave_up is None


def test_a_crash_before_the_first_event_is_not_restarted() -> None:
    auto_restart = AutoRestart()
    crash(auto_restart)
    assert auto_restart.pending is None


def test_a_device_failure_reported_by_the_trainer_is_restarted() -> None:
    auto_restart = started_run()
    auto_restart.on_exited(6, 0.0, error="failure.launch")
    assert auto_restart.pending is not None
    assert auto_restart.pending.reason == "failure.launch"
