"""What is told to somebody who looks elsewhere: what counts, once."""

from __future__ import annotations

import pytest

from app.state import glance
from app.state.attention import ADVICE, WARNINGS, Attention
from app.state.run_machine import AskedStop, Exited, Input, RunMachine, Started
from trainer_core import protocol
from trainer_core.messages import CATALOGUE

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


def machine(*events: Input) -> RunMachine:
    made = RunMachine()
    for now, event in enumerate((Started("runs/a"), *events)):
        made.feed(event, float(now))
    return made


def test_every_code_that_counts_has_words() -> None:
    assert set(CATALOGUE) >= WARNINGS | ADVICE


def test_of_a_run_that_goes_well_only_its_end_is_told() -> None:
    attention = Attention()
    calm = [hello(), protocol.Phase(phase="training"), step(3.0), protocol.Warn(code="data.undecodable")]
    assert [attention.add(event) for event in (*calm, protocol.Advice(code="advice.data_bound"))] == [None] * 5
    told = attention.ended(machine(*calm, done(), Exited(0)), restarts=False)
    assert told is not None
    assert (told.kind, told.step, told.loss) == ("finished", 100, 2.5)


def test_a_full_disk_is_told_once_until_there_was_room_again() -> None:
    attention = Attention()
    waiting = protocol.Warn(code="disk.waiting", params={"path": "D:", "needed_mib": 2, "free_mib": 1})
    first = attention.add(waiting)
    assert first is not None
    assert (first.kind, first.code, first.params["path"]) == ("attention", "disk.waiting", "D:")
    assert attention.add(waiting) is None
    attention.add(protocol.Phase(phase="training"))
    assert attention.add(waiting) is not None


def test_a_loss_that_is_no_number_is_told_once() -> None:
    attention = Attention()
    told = attention.add(step(None, 12))
    assert told is not None
    assert (told.kind, told.step) == ("not_a_number", 12)
    assert attention.add(step(None, 13)) is None


def test_advice_that_cannot_wait_is_told_again_only_after_it_was_over() -> None:
    attention = Attention()
    hot = protocol.Advice(code="advice.thermal")
    assert attention.add(hot) is not None
    assert attention.add(hot) is None
    assert attention.add(protocol.Advice(code="advice.thermal", over=True)) is None
    assert attention.add(hot) is not None


@pytest.mark.parametrize("exit_code", [7, -11])
def test_a_failure_is_told_with_its_cause_unless_the_run_goes_on_by_itself(exit_code: int) -> None:
    error = protocol.Error(code="disk.full", params={"path": "D:"}, exit_code=exit_code)
    failed = machine(hello(), error, Exited(exit_code))
    attention = Attention()
    assert attention.ended(failed, restarts=True) is None
    told = attention.ended(failed, restarts=False)
    assert told is not None
    assert (told.kind, told.code) == ("failed", "disk.full")
    crashed = attention.ended(machine(hello(), Exited(-11, crashed=True)), restarts=False)
    assert crashed is not None
    assert (crashed.kind, crashed.code) == ("failed", "")


def test_what_a_person_stopped_is_not_told() -> None:
    stopped = machine(hello(), AskedStop(), Exited(3))
    assert Attention().ended(stopped, restarts=False) is None


def test_after_a_restart_by_itself_nothing_is_repeated_but_a_new_run_tells_all() -> None:
    attention = Attention()
    assert attention.add(protocol.Advice(code="advice.battery")) is not None
    attention.ended(machine(hello(), Exited(-11, crashed=True)), restarts=True)
    attention.add(hello(resumed=5))
    assert attention.add(protocol.Advice(code="advice.battery")) is None
    attention.add(hello())
    assert attention.add(protocol.Advice(code="advice.battery")) is not None


def test_a_glance_changes_only_when_what_it_shows_does() -> None:
    running = machine(hello(), protocol.Phase(phase="training"), step(2.0, 50))
    seen = glance.of(running, 2.0)
    assert (seen.mood, seen.permille, seen.step, seen.total_steps, seen.loss) == ("working", 500, 50, 100, 2.0)
    assert glance.of(running, 2.0) == seen
    assert glance.of(machine(hello(), protocol.Phase(phase="paused")), None).mood == "paused"
    assert glance.of(machine(hello(), Exited(-11, crashed=True)), None).mood == "bad"
    over = glance.of(machine(hello(), done(), Exited(0)), 2.0)
    assert (over.mood, over.is_over) == ("done", True)
