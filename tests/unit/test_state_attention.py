"""What is told to somebody who looks elsewhere: what counts, once."""

from __future__ import annotations

import pytest

from app.core import run_status
from app.core.notifications import NOTIFIED_ADVICE, NOTIFIED_WARNINGS, NotificationFilter
from app.core.run_state import ProcessExited, ProcessStarted, RunInput, RunRequest, RunStateMachine
from trainer_core import protocol
from trainer_core.messages import codes

TIME = protocol.StepTime(data=1.0, transfer=0.0, forward=1.0, backward=1.0, optimizer=1.0, other=0.0)


def hello(resumed: int | None = None) -> protocol.Hello:
    return protocol.Hello(
        pid=1,
        run_dir="runs/a",
        traindeck="1",
        python="3",
        torch="2",
        resumed_from_step=resumed,
        config={"max_steps": 100},
    )


def step(loss: float | None, number: int = 7) -> protocol.Step:
    return protocol.Step(
        step=number, epoch=0.1, tokens=1, samples=1, loss=loss, learning_rate=1.0, tokens_per_s=1.0, samples_per_s=1.0,
        time_ms=TIME,
    )  # fmt: skip


def done(best: float | None = 2.5) -> protocol.Done:
    return protocol.Done(reason="finished", steps=100, total_steps=100, best_loss=best, final_loss=2.75)


def machine(*events: RunInput) -> RunStateMachine:
    made = RunStateMachine()
    for now, event in enumerate((ProcessStarted("runs/a"), *events)):
        made.feed(event, float(now))
    return made


def test_every_code_that_counts_has_words() -> None:
    assert set(codes()) >= NOTIFIED_WARNINGS | NOTIFIED_ADVICE


def test_of_a_run_that_goes_well_only_its_end_is_told() -> None:
    attention = NotificationFilter()
    calm = [hello(), protocol.Phase(phase="training"), step(3.0), protocol.Warn(code="data.undecodable")]
    assert [attention.process(event) for event in (*calm, protocol.Advice(code="advice.data_bound"))] == [None] * 5
    told = attention.on_run_ended(machine(*calm, done(), ProcessExited(0)), will_restart=False)
    assert told is not None
    assert (told.kind, told.step, told.loss) == ("finished", 100, 2.5)


def test_a_full_disk_is_told_once_until_there_was_room_again() -> None:
    attention = NotificationFilter()
    waiting = protocol.Warn(code="disk.waiting", params={"path": "D:", "needed_mib": 2, "free_mib": 1})
    first = attention.process(waiting)
    assert first is not None
    assert (first.kind, first.code, first.params["path"]) == ("attention", "disk.waiting", "D:")
    assert attention.process(waiting) is None
    attention.process(protocol.Phase(phase="training"))
    assert attention.process(waiting) is not None


def test_a_loss_that_is_no_number_is_told_once() -> None:
    attention = NotificationFilter()
    told = attention.process(step(None, 12))
    assert told is not None
    assert (told.kind, told.step) == ("not_a_number", 12)
    assert attention.process(step(None, 13)) is None


def test_advice_that_cannot_wait_is_told_again_only_after_it_was_over() -> None:
    attention = NotificationFilter()
    hot = protocol.Advice(code="advice.thermal")
    assert attention.process(hot) is not None
    assert attention.process(hot) is None
    assert attention.process(protocol.Advice(code="advice.thermal", resolved=True)) is None
    assert attention.process(hot) is not None


@pytest.mark.parametrize("exit_code", [7, -11])
def test_a_failure_is_told_with_its_cause_unless_the_run_goes_on_by_itself(exit_code: int) -> None:
    error = protocol.Error(code="disk.full", params={"path": "D:"}, exit_code=exit_code)
    failed = machine(hello(), error, ProcessExited(exit_code))
    attention = NotificationFilter()
    assert attention.on_run_ended(failed, will_restart=True) is None
    told = attention.on_run_ended(failed, will_restart=False)
    assert told is not None
    assert (told.kind, told.code) == ("failed", "disk.full")
    crashed = attention.on_run_ended(machine(hello(), ProcessExited(-11, crashed=True)), will_restart=False)
    assert crashed is not None
    assert (crashed.kind, crashed.code) == ("failed", "")


def test_what_a_person_stopped_is_not_told() -> None:
    stopped = machine(hello(), RunRequest.STOP, ProcessExited(3))
    assert NotificationFilter().on_run_ended(stopped, will_restart=False) is None


def test_after_a_restart_by_itself_nothing_is_repeated_but_a_new_run_tells_all() -> None:
    attention = NotificationFilter()
    assert attention.process(protocol.Advice(code="advice.battery")) is not None
    attention.on_run_ended(machine(hello(), ProcessExited(-11, crashed=True)), will_restart=True)
    attention.process(hello(resumed=5))
    assert attention.process(protocol.Advice(code="advice.battery")) is None
    attention.process(hello())
    assert attention.process(protocol.Advice(code="advice.battery")) is not None


def test_a_glance_changes_only_when_what_it_shows_does() -> None:
    running = machine(hello(), protocol.Phase(phase="training"), step(2.0, 50))
    seen = run_status.run_status(running, 2.0)
    assert (seen.indicator, seen.permille, seen.step, seen.total_steps, seen.loss) == ("working", 500, 50, 100, 2.0)
    assert run_status.run_status(running, 2.0) == seen
    assert run_status.run_status(machine(hello(), protocol.Phase(phase="paused")), None).indicator == "paused"
    assert run_status.run_status(machine(hello(), ProcessExited(-11, crashed=True)), None).indicator == "bad"
    over = run_status.run_status(machine(hello(), done(), ProcessExited(0)), 2.0)
    assert (over.indicator, over.is_over) == ("done", True)
