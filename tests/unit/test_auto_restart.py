"""The countdown to an automatic restart in the window."""

from __future__ import annotations

import sys

from app.core.auto_restart import AutoRestart
from trainer_core import protocol

SEGFAULT = -0x3FFFFFFB if sys.platform == "win32" else 11  # as Qt tells it


def hello(restarts: object = 2, resumed: int | None = None) -> protocol.Hello:
    return protocol.Hello(
        pid=1,
        run_dir="run",
        traindeck="0",
        python="3",
        torch="2",
        devices=["CPU"],
        precision="fp32",
        config={"restarts": restarts},
        resumed_from_step=resumed,
    )


def saved(step: int) -> protocol.Checkpoint:
    return protocol.Checkpoint(step=step, path=f"step-{step:08d}", bytes=1, seconds=0.1, kind="regular")


def crash(restarting: AutoRestart, now: float = 0.0) -> None:
    restarting.on_exited(SEGFAULT, now, crashed=True)


def begun(*events: protocol.AnyEvent) -> AutoRestart:
    restarting = AutoRestart()
    for event in (hello(), *events):
        restarting.add(event)
    return restarting


def test_a_crash_is_counted_down_to_its_restart() -> None:
    restarting = begun(saved(40))
    crash(restarting, now=100.0)
    pending = restarting.pending
    assert pending is not None
    assert (pending.attempt, pending.limit, pending.reason, pending.step) == (
        1,
        2,
        "failure.access_violation",
        40,
    )
    assert restarting.remaining_s(102.0) == 3.0
    assert restarting.remaining_s(200.0) == 0.0
    assert not restarting.is_due(104.0)
    assert restarting.is_due(105.0)


def test_a_person_may_cancel_it_or_not_wait() -> None:
    restarting = begun()
    crash(restarting, now=10.0)
    restarting.skip_countdown()
    assert restarting.is_due(11.0)
    restarting.pending = None
    assert not restarting.is_due(99.0)


def test_attempts_without_progress_come_to_an_end() -> None:
    restarting = begun(saved(40))
    for _ in range(2):
        crash(restarting)
        assert restarting.pending is not None
        restarting.on_restarted()
        restarting.add(hello(resumed=40))
    crash(restarting)
    assert restarting.pending is None
    assert restarting.gave_up is not None
    assert restarting.gave_up.attempts == 2


def test_a_checkpoint_in_between_is_progress() -> None:
    restarting = begun(saved(40))
    for step in (50, 60, 70, 80):
        crash(restarting)
        restarting.on_restarted()
        restarting.add(hello(resumed=step - 10))
        restarting.add(saved(step))
    crash(restarting)
    assert restarting.pending is not None
    assert restarting.pending.attempt == 1


def test_failures_that_stay_and_runs_without_restarts_wait_for_a_person() -> None:
    restarting = begun()
    restarting.on_exited(7, 0.0, error="disk.full")
    assert restarting.pending is None
    for limit in (0, None, "many"):
        never = AutoRestart()
        never.add(hello(restarts=limit))
        crash(never)
        assert never.pending is None
        assert never.gave_up is None


def test_a_trainer_that_never_said_hello_is_not_started_again() -> None:
    restarting = AutoRestart()
    crash(restarting)
    assert restarting.pending is None


def test_a_lost_device_that_the_trainer_told_of_is_tried_again() -> None:
    restarting = begun()
    restarting.on_exited(6, 0.0, error="failure.launch")
    assert restarting.pending is not None
    assert restarting.pending.reason == "failure.launch"
