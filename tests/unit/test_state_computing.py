"""What is known of how a run computes."""

from __future__ import annotations

from app.core.execution_info import ExecutionInfo
from trainer_core import protocol
from trainer_core.docgen.examples import EVENTS
from trainer_core.protocol import FastPath

READY: protocol.Ready = EVENTS[protocol.Ready]


def hello(resumed: int | None = None) -> protocol.Hello:
    return protocol.Hello(
        pid=1, run_dir="r", traindeck="0", python="3", torch="2", devices=["cpu"], precision="fp32",
        resumed_from_step=resumed, config={"batch_size": 12, "gradient_accumulation_steps": 4},
        fast_paths=[FastPath(name="tf32", used=False, reason="path.no_gpu")],
    )  # fmt: skip


def bad(step: int) -> protocol.BadStep:
    return protocol.BadStep(step=step, kind="not_finite", action="skipped")


def test_what_the_machine_can_do_stands_until_the_run_has_chosen() -> None:
    computing = ExecutionInfo()
    assert computing.fast_paths == []
    computing.add(hello())
    assert [path.name for path in computing.fast_paths] == ["tf32"]
    computing.add(READY)
    assert computing.fast_paths == READY.fast_paths
    computing.add(EVENTS[protocol.Compiled])
    assert computing.compile_s == 34.2
    assert [path.name for path in computing.fast_paths] == ["compile"]
    assert computing.samples_per_step == 48


def test_figures_do_not_change_the_version_of_what_rarely_changes() -> None:
    computing = ExecutionInfo()
    computing.add(READY)
    before, setup = computing.version, computing.setup_version
    computing.add(EVENTS[protocol.Performance])
    assert (computing.version, computing.setup_version) == (before + 1, setup)
    computing.add(EVENTS[protocol.Step])  # no news here
    assert computing.version == before + 1


def test_a_resumed_run_keeps_the_bad_steps_before_it_and_a_new_one_begins_anew() -> None:
    computing = ExecutionInfo()
    for event in (hello(), bad(10), bad(40), hello(resumed=30)):
        computing.add(event)
    assert [event.step for event in computing.bad_steps] == [10]
    computing.add(hello())
    assert computing.bad_steps == []
