"""State machine of a run: states, possible commands, and stop deadlines."""

from __future__ import annotations

import random

import pytest

from app.core.run_state import (
    ACTIVE_STATES,
    ProcessExited,
    ProcessStarted,
    RunInput,
    RunRequest,
    RunState,
    RunStateMachine,
)
from app.core.training_time import TrainingTime
from tests.events import checkpoint, hello, step
from trainer_core import protocol
from trainer_core.protocol import AnyEvent


def phase(name: protocol.PhaseName) -> protocol.Phase:
    return protocol.Phase(phase=name)


def done_stopped(number: int = 5) -> protocol.Done:
    return protocol.Done(reason="stopped", steps=number, total_steps=10)


def started_machine(*events: RunInput) -> RunStateMachine:
    """Return a started machine that has processed `events`, all at time 0."""
    machine = RunStateMachine()
    for event in (ProcessStarted(), *events):
        machine.feed(event, 0.0)
    return machine


def training_machine() -> RunStateMachine:
    return started_machine(hello(), phase("training"), step(1))


@pytest.mark.parametrize("reason", ["finished", "early_stop"])
def test_a_run_passes_through_its_states_in_order(reason: protocol.DoneReason) -> None:
    machine = RunStateMachine()
    states = [machine.state]
    inputs: list[RunInput] = [
        ProcessStarted(),
        hello(),
        phase("preparing"),
        phase("training"),
        step(1),
        phase("evaluating"),
    ]
    inputs += [phase("training"), phase("saving"), checkpoint(1), phase("training"), step(2)]
    inputs += [protocol.Done(reason=reason, steps=2, total_steps=9), phase("done"), ProcessExited(0)]
    for event in inputs:
        if machine.feed(event, 0.0):
            states.append(machine.state)
    s = RunState
    assert states[:5] == [s.IDLE, s.STARTING, s.PREPARING, s.TRAINING, s.EVALUATING]
    assert states[5:] == [s.TRAINING, s.SAVING, s.TRAINING, s.FINISHED]
    assert machine.progress == 1.0


def test_step_epoch_progress_and_times_follow_the_events() -> None:
    machine = started_machine(hello())
    machine.feed(protocol.Progress(phase="preparing", done=1, total=4, unit="bytes"), 1.0)
    assert machine.progress == 0.25
    machine.feed(phase("training"), 2.0)
    machine.feed(step(5, epoch=1.5), 3.0)
    machine.feed(protocol.Progress(phase="training", done=5, total=20, eta_s=30.0), 3.0)
    machine.feed(RunRequest.TICK, 13.0)
    assert (machine.step, machine.total_steps, machine.epoch, machine.progress) == (5, 20, 1.5, 0.25)
    assert (machine.elapsed_s, machine.eta_s) == (13.0, 20.0)
    machine.feed(protocol.Progress(phase="evaluating", done=1, total=2, unit="batches"), 13.0)
    assert machine.progress == 0.25  # not the progress of the evaluation


def test_a_pause_changes_neither_elapsed_nor_remaining_time() -> None:
    machine = training_machine()
    machine.feed(protocol.Progress(phase="training", done=1, total=20, eta_s=30.0), 10.0)
    machine.feed(phase("paused"), 10.0)
    machine.feed(RunRequest.TICK, 500.0)
    assert (machine.state, machine.elapsed_s, machine.eta_s) == (RunState.PAUSED, 10.0, 30.0)


def test_elapsed_time_of_a_resumed_run_excludes_the_start_of_its_process() -> None:
    training_time, machine = TrainingTime(), RunStateMachine()
    machine.feed(ProcessStarted("runs/a"), 100.0)
    events: list[tuple[float, AnyEvent]] = [(108.0, hello()), (109.0, phase("training")), (120.0, checkpoint(5))]
    for now, event in events:
        event.t = now
        training_time.add(event)
        machine.feed(event, now)
    machine.feed(ProcessExited(3), 120.0)
    assert machine.elapsed_s == 12.0
    machine.feed(ProcessStarted("runs/a", has_checkpoint=True, training_time=training_time), 200.0)
    machine.feed(RunRequest.TICK, 208.0)
    assert machine.elapsed_s == 12.0
    machine.feed(hello(resumed_from_step=5), 209.0)
    machine.feed(RunRequest.TICK, 210.0)
    assert machine.elapsed_s == 13.0


def test_elapsed_time_excludes_steps_that_a_restarted_trainer_on_another_machine_repeats() -> None:
    training_time, machine = TrainingTime(), RunStateMachine()
    machine.feed(ProcessStarted("runs/here", training_time=training_time, is_remote=True), 0.0)
    elapsed_s = []
    for event in (
        hello(0.0), checkpoint(100, 3600.0), step(101, 3660.0),
        hello(3670.0, resumed_from_step=100), checkpoint(200, 7270.0),
        hello(7280.0, resumed_from_step=200), step(201, 7300.0),
    ):  # fmt: skip
        training_time.add(event)
        machine.feed(event, event.t)
        elapsed_s.append(machine.elapsed_s)
        assert machine.elapsed_s == training_time.seconds
    assert elapsed_s == [0.0, 3600.0, 3660.0, 3600.0, 7200.0, 7200.0, 7220.0]


def test_a_pause_is_pending_until_the_trainer_has_paused() -> None:
    machine = training_machine()
    assert machine.can_pause
    machine.feed(RunRequest.PAUSE, 1.0)
    assert (machine.state, machine.pause_pending, machine.can_pause) == (RunState.TRAINING, True, False)
    machine.feed(phase("paused"), 2.0)
    assert (machine.state, machine.can_resume, machine.can_resume_from_disk) == (RunState.PAUSED, True, False)
    machine.feed(RunRequest.RESUME, 3.0)
    assert machine.resume_pending
    assert not machine.can_resume
    machine.feed(phase("training"), 4.0)
    assert (machine.state, machine.can_pause) == (RunState.TRAINING, True)


def test_a_rejected_pause_can_be_requested_again() -> None:
    machine = training_machine()
    machine.feed(RunRequest.PAUSE, 1.0)
    machine.feed(protocol.Ack(command="pause", accepted=False), 1.0)
    assert machine.can_pause


def test_a_trainer_that_ignores_a_stop_is_killed_after_the_timeout() -> None:
    machine = training_machine()
    assert machine.stop_deadline_s is None
    machine.feed(RunRequest.STOP, 10.0)
    assert machine.state is RunState.STOPPING
    for second in range(10, 70):
        machine.feed(step(second), float(second))  # the trainer ignores the stop
        assert machine.stop_deadline_s == 70.0 - second
    machine.feed(RunRequest.TICK, 70.0)
    assert machine.state is RunState.KILLING
    machine.feed(ProcessExited(9, crashed=True), 70.5)
    assert (machine.state, machine.killed) == (RunState.STOPPED, True)


def test_only_progress_of_a_save_extends_the_stop_deadline() -> None:
    machine = training_machine()
    machine.feed(RunRequest.STOP, 0.0)
    for second in (50.0, 100.0, 150.0):
        machine.feed(protocol.Progress(phase="saving", done=second, total=1000, unit="bytes"), second)
        assert machine.stop_deadline_s == 60.0
    for second in range(151, 210):
        machine.feed(protocol.Progress(phase="saving", done=150.0, total=1000, unit="bytes"), float(second))
    machine.feed(RunRequest.TICK, 210.0)
    assert machine.state is RunState.KILLING


def test_a_second_stop_kills_unless_it_is_a_double_click() -> None:
    machine = training_machine()
    machine.feed(RunRequest.STOP, 10.0)
    machine.feed(RunRequest.STOP, 10.2)
    assert (machine.state, machine.can_stop) == (RunState.STOPPING, False)
    machine.feed(RunRequest.TICK, 12.0)
    assert machine.next_stop_kills
    assert machine.can_stop
    machine.feed(RunRequest.STOP, 12.0)
    assert machine.state is RunState.KILLING


def test_a_stopped_run_can_be_resumed_from_disk() -> None:
    machine = training_machine()
    machine.feed(RunRequest.STOP, 1.0)
    for event in (
        protocol.Ack(command="stop"),
        phase("saving"),
        checkpoint(5),
        done_stopped(),
        phase("done"),
        ProcessExited(3),
    ):
        machine.feed(event, 2.0)
    assert (machine.state, machine.killed, machine.step) == (RunState.STOPPED, False, 5)
    assert machine.can_resume_from_disk
    assert machine.can_resume
    assert machine.can_start


def test_a_run_without_a_checkpoint_cannot_be_resumed() -> None:
    machine = training_machine()
    machine.feed(ProcessExited(9, crashed=True), 1.0)
    assert machine.state is RunState.CRASHED
    assert not machine.can_resume


def test_phases_after_a_stop_request_do_not_change_the_state() -> None:
    machine = training_machine()
    machine.feed(RunRequest.STOP, 1.0)
    machine.feed(phase("training"), 1.1)
    machine.feed(phase("evaluating"), 1.2)
    assert machine.state is RunState.STOPPING


def test_a_stop_by_the_trainer_has_no_deadline_until_the_user_requests_it() -> None:
    machine = training_machine()
    machine.feed(phase("stopping"), 1.0)
    assert (machine.state, machine.stop_deadline_s, machine.next_stop_kills) == (RunState.STOPPING, None, False)
    machine.feed(RunRequest.STOP, 2.0)
    assert (machine.state, machine.stop_deadline_s) == (RunState.STOPPING, 60.0)


def test_a_finished_trainer_that_does_not_exit_is_killed() -> None:
    machine = training_machine()
    machine.feed(protocol.Done(reason="finished", steps=10, total_steps=10), 1.0)
    assert not machine.can_pause
    machine.feed(RunRequest.TICK, 100.0)
    assert machine.state is RunState.KILLING
    machine.feed(ProcessExited(9, crashed=True), 101.0)
    assert machine.state is RunState.FINISHED


def test_a_run_on_another_machine_has_no_deadlines_and_keeps_its_folder_when_its_trainer_is_restarted() -> None:
    machine = RunStateMachine()
    machine.feed(ProcessStarted("runs/here", is_remote=True), 0.0)
    failed = protocol.Error(code="device.failed", exit_code=6)
    before = done_stopped()
    for event in (
        phase("stopping"),
        before,
        hello(run_dir="/there/runs/a"),
        phase("training"),
        step(1),
        failed,
        phase("connecting"),
    ):
        machine.feed(event, 0.0)
    assert machine.done is None
    machine.feed(RunRequest.TICK, 10_000.0)
    assert machine.state is RunState.PREPARING
    for again in (hello(run_dir="/there/runs/a"), phase("training"), step(2)):
        machine.feed(again, 10_000.0)
    assert (machine.run_dir, machine.last_error, machine.state) == ("runs/here", None, RunState.TRAINING)
    machine.feed(RunRequest.STOP, 10_000.0)
    machine.feed(RunRequest.TICK, 20_000.0)
    assert machine.state is RunState.STOPPING
    machine.feed(RunRequest.STOP, 20_000.0)
    assert machine.state is RunState.KILLING


def test_the_error_of_a_failed_run_is_stored() -> None:
    machine = training_machine()
    machine.feed(protocol.Error(code="disk.full", params={"path": "D:"}, detail="ENOSPC", exit_code=7), 1.0)
    machine.feed(ProcessExited(7), 1.0)
    assert machine.state is RunState.FAILED
    assert machine.last_error is not None
    assert (machine.last_error.code, machine.last_error.params) == ("disk.full", {"path": "D:"})


def test_exit_code_0_after_the_last_step_means_finished() -> None:
    machine = started_machine(hello(config={"max_steps": 2}), phase("training"), step(1), step(2), ProcessExited(0))
    assert machine.state is RunState.FINISHED


@pytest.mark.parametrize(
    ("exit_code", "crashed", "state"),
    [
        (0, False, RunState.CRASHED),  # before the last step: a Windows job was closed
        (1, False, RunState.CRASHED),
        (2, False, RunState.FAILED),
        (3, False, RunState.CRASHED),  # without a stop request: abort() on Windows
        (7, False, RunState.FAILED),
        (120, False, RunState.CRASHED),
        (-1073741819, True, RunState.CRASHED),  # access violation
        (0, True, RunState.CRASHED),
    ],
)
def test_the_state_after_an_exit_without_events_depends_on_the_exit_code(
    exit_code: int, crashed: bool, state: RunState
) -> None:
    machine = training_machine()
    machine.feed(ProcessExited(exit_code, crashed), 1.0)
    assert machine.state is state


def test_exit_code_3_after_a_stop_request_means_stopped() -> None:
    machine = training_machine()
    machine.feed(RunRequest.STOP, 1.0)
    machine.feed(ProcessExited(3), 2.0)
    assert (machine.state, machine.killed) == (RunState.STOPPED, False)


def test_a_resumed_run_starts_at_its_checkpoint() -> None:
    machine = started_machine(hello(resumed_from_step=40, config={"max_steps": 100}))
    machine.feed(phase("training"), 0.0)
    assert (machine.step, machine.total_steps, machine.progress) == (40, 100, 0.4)
    assert machine.has_checkpoint


def test_a_resumed_run_that_crashes_before_its_first_event_can_be_resumed_again() -> None:
    machine = RunStateMachine()
    machine.feed(ProcessStarted("runs/a", has_checkpoint=True), 0.0)
    machine.feed(ProcessExited(11, crashed=True), 1.0)
    assert machine.state is RunState.CRASHED
    assert machine.can_resume


def test_a_new_start_resets_the_state() -> None:
    machine = training_machine()
    machine.feed(protocol.Error(code="internal"), 1.0)
    machine.feed(ProcessExited(1), 1.0)
    assert machine.feed(ProcessStarted("runs/b"), 50.0)
    assert (machine.state, machine.step, machine.last_error, machine.elapsed_s) == (RunState.STARTING, 0, None, 0.0)
    assert machine.run_dir == "runs/b"


def test_events_before_the_start_and_after_the_end_are_ignored() -> None:
    machine = RunStateMachine()
    for event in (hello(), step(3), phase("training"), RunRequest.STOP, ProcessExited(0), RunRequest.TICK):
        assert not machine.feed(event, 1.0)
    assert machine.state is RunState.IDLE
    machine = training_machine()
    machine.feed(done_stopped(), 1.0)
    machine.feed(ProcessExited(3), 1.0)
    for event in (hello(), step(3), phase("training"), RunRequest.STOP, ProcessExited(0), RunRequest.TICK):
        assert not machine.feed(event, 2.0)
    assert machine.state is RunState.STOPPED


def test_random_event_orders_neither_raise_nor_prevent_a_stop() -> None:
    phases: tuple[protocol.PhaseName, ...] = ("preparing", "training", "saving", "paused", "stopping", "done", "failed")
    pool: list[RunInput] = [
        ProcessStarted(),
        hello(),
        step(1),
        RunRequest.STOP,
        RunRequest.PAUSE,
        RunRequest.RESUME,
        ProcessExited(1),
        RunRequest.TICK,
    ]
    pool += [phase(name) for name in phases]
    pool += [checkpoint(1), done_stopped(), protocol.Error(code="internal"), protocol.Ack(command="stop")]
    rng = random.Random(7)
    for _ in range(500):
        machine, now = RunStateMachine(), 0.0
        for event in rng.choices(pool, k=40):
            now += rng.random() * 5
            machine.feed(event, now)
            _ = machine.progress, machine.eta_s, machine.can_stop, machine.can_resume, machine.stop_deadline_s
            assert machine.can_start == (machine.state not in ACTIVE_STATES)
        machine.feed(RunRequest.STOP, now)
        deadline = now + 1000.0
        while machine.state is RunState.STOPPING and now < deadline:
            now += 1.0
            machine.feed(RunRequest.TICK, now)
        assert machine.state is not RunState.STOPPING
