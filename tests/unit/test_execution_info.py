"""Execution info of a run: fast paths, compile time, bad steps."""

from __future__ import annotations

from app.core.execution_info import ExecutionInfo
from tests import events
from trainer_core import protocol
from trainer_core.docgen.examples import EVENTS
from trainer_core.protocol import FastPath

READY: protocol.Ready = EVENTS[protocol.Ready]


def hello(resumed: int | None = None) -> protocol.Hello:
    return events.hello(
        resumed_from_step=resumed,
        config={"batch_size": 12, "gradient_accumulation_steps": 4},
        fast_paths=[FastPath(name="tf32", used=False, reason="path.no_gpu")],
    )


def bad_step(step: int) -> protocol.BadStep:
    return protocol.BadStep(step=step, kind="not_finite", action="skipped")


def test_fast_paths_of_the_machine_are_replaced_by_those_of_the_run() -> None:
    execution = ExecutionInfo()
    assert execution.fast_paths == []
    execution.add(hello())
    assert [path.name for path in execution.fast_paths] == ["tf32"]
    execution.add(READY)
    assert execution.fast_paths == READY.fast_paths
    execution.add(EVENTS[protocol.Compiled])
    assert execution.compile_s == 34.2
    assert [path.name for path in execution.fast_paths] == ["compile"]
    assert execution.samples_per_step == 48


def test_the_version_increases_with_every_change() -> None:
    execution = ExecutionInfo()
    execution.add(READY)
    before = execution.version
    execution.add(EVENTS[protocol.Performance])
    assert execution.version == before + 1
    execution.add(EVENTS[protocol.Step])  # ignored
    assert execution.version == before + 1


def test_a_resumed_run_keeps_earlier_bad_steps_and_a_new_run_has_none() -> None:
    execution = ExecutionInfo()
    for event in (hello(), bad_step(10), bad_step(40), hello(resumed=30)):
        execution.add(event)
    assert [event.step for event in execution.bad_steps] == [10]
    execution.add(hello())
    assert execution.bad_steps == []
