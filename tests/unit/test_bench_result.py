"""What a measurement tells of the machine that it ran on."""

from __future__ import annotations

import psutil
import pytest

from trainer_core import protocol
from trainer_core.benchmark import result
from trainer_core.benchmark.recipes import Recipe, Run, _run
from trainer_core.config import Config


def test_a_system_that_does_not_tell_its_processor_time_is_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(interval: float) -> float:
        raise OSError(1, "Invalid function")

    monkeypatch.setattr(psutil, "cpu_percent", refuse)
    assert result.busy() == 0.0


def ran(tokens_per_s: float) -> Run:
    return Run(
        tokens_per_s=tokens_per_s, step_ms=1.0, steps=1, precision="fp32", parameters=1, start_s=1.0, compile_s=None,
        fast_paths=[], peak_vram=None, utilization=None, mfu=None, in_parts=False,
    )  # fmt: skip


def test_runs_are_compared_with_those_of_their_own_round() -> None:
    """A batch that was halved late has no runs of the rounds before; a recipe that failed has none of those after."""
    untuned = Recipe("untuned", Config(), {1: ran(100), 2: ran(50), 3: ran(80)})
    halved = Recipe("tuned", Config(), {2: ran(100), 3: ran(240)})
    failed = Recipe("tuned", Config(), {1: ran(150)})
    assert (result.times_as_fast(halved, untuned) or {})["each"] == [2.0, 3.0]
    assert (result.times_as_fast(failed, untuned) or {})["each"] == [1.5]
    assert result.times_as_fast(Recipe("tuned", Config()), untuned) is None


def reported(step: int, t: float) -> protocol.Step:
    took = protocol.StepTime(data=0, transfer=0, forward=0, backward=0, optimizer=0, other=0)
    return protocol.Step(
        t=t, step=step, epoch=0.0, tokens=10 * step, samples=step, loss=1.0, learning_rate=1.0, tokens_per_s=1.0,
        samples_per_s=1.0, time_ms=took,
    )  # fmt: skip


def test_reports_of_one_tick_of_the_clock_do_not_end_a_benchmark() -> None:
    steps = [reported(step, t) for step, t in enumerate([0.0, 0.1, 0.2, 0.2, 0.3, 0.4, 0.5], start=1)]
    seen = {"hardware": [], "memory": [], "in_parts": False}
    hello = protocol.Hello(pid=1, run_dir="", traindeck="", python="", torch="", precision="fp32")
    ready = protocol.Ready(
        task="pretrain", train_documents=1, train_tokens=1, validation_documents=0, validation_tokens=0, vocab_size=1,
        parameters=1, steps_per_epoch=1, total_steps=1,
    )  # fmt: skip
    run = _run(0.0, steps, {**seen, "Hello": hello, "Ready": ready})
    assert run.tokens_per_s == pytest.approx(100)
    assert run.step_ms == pytest.approx(100)
