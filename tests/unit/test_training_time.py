"""Training time of a run over all its processes."""

from __future__ import annotations

from app.core.run_state import ProcessStarted, RunRequest, RunStateMachine
from app.core.training_time import TrainingTime
from tests.events import checkpoint, hello
from trainer_core import protocol
from trainer_core.protocol import AnyEvent


def phase(t: float, name: protocol.PhaseName) -> protocol.Phase:
    return protocol.Phase(t=t, phase=name)


def training_time(*events: AnyEvent) -> TrainingTime:
    result = TrainingTime()
    for event in events:
        result.add(event)
    return result


INTERRUPTED = (hello(1000), phase(1010, "training"), checkpoint(50, 1100), checkpoint(100, 1200), phase(1260, "saving"))


def test_pauses_are_excluded() -> None:
    time = training_time(hello(1000), phase(1010, "paused"), phase(1500, "training"), checkpoint(50, 1520))
    assert time.seconds == 30.0


def test_the_time_between_two_processes_is_excluded() -> None:
    time = training_time(*INTERRUPTED, hello(90_000, resumed_from_step=100), phase(90_040, "training"))
    assert time.seconds == 240.0


def test_repeated_steps_are_counted_once() -> None:
    assert training_time(*INTERRUPTED).seconds == 260.0
    assert training_time(*INTERRUPTED, hello(2000, resumed_from_step=50)).seconds == 100.0


def test_a_run_without_a_checkpoint_restarts_at_zero() -> None:
    assert training_time(*INTERRUPTED, hello(2000)).seconds == 0.0


def test_a_pause_ends_when_its_process_exits() -> None:
    time = training_time(
        hello(0), checkpoint(5, 10), phase(20, "paused"), hello(100, resumed_from_step=5), phase(130, "training")
    )
    assert time.seconds == 40.0


def test_a_resumed_run_continues_at_the_time_of_its_checkpoint() -> None:
    machine = RunStateMachine()
    machine.feed(ProcessStarted("r", has_checkpoint=True, training_time=training_time(*INTERRUPTED)), 0.0)
    assert machine.elapsed_s == 260.0  # until the trainer reports the resume step
    machine.feed(hello(5000, resumed_from_step=100), 4.0)
    assert machine.elapsed_s == 200.0
    machine.feed(RunRequest.TICK, 10.0)
    assert machine.elapsed_s == 206.0


def test_the_remaining_time_does_not_depend_on_earlier_processes() -> None:
    machine = RunStateMachine()
    for now, event in (
        (0.0, ProcessStarted("r", has_checkpoint=True, training_time=training_time(*INTERRUPTED))),
        (4.0, hello(5000, resumed_from_step=100)),
        (5.0, phase(5001, "training")),
        (6.0, protocol.Progress(phase="training", done=101, total=200, eta_s=60.0)),
        (16.0, RunRequest.TICK),
    ):
        machine.feed(event, now)
    assert machine.eta_s == 50.0
