"""Runs with Muon, a plateau schedule and bad steps resume exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.trainer_process import TINY, TrainerResult, reached_step, read_until, run, start, text_file
from trainer_core import protocol

STEPS = 40
# Gradient norms fall during training, so a factor below one turns a few late steps into spikes.
ARGUMENTS = (
    "train", *TINY, "--gradient-accumulation-steps", "1", "--max-steps", str(STEPS), "--save-steps", "6",
    "--keep-last", "1", "--keep-best", "0", "--sample-steps", "0", "--eval-steps", "4", "--optimizer", "muon",
    "--lr-schedule", "plateau", "--plateau-patience", "1", "--spike-factor", "0.62",
)  # fmt: skip


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_a_run_with_bad_steps_resumes_exactly(tmp_path: Path, action: str) -> None:
    arguments = (*ARGUMENTS, "--on-bad-step", action, "--data", str(text_file(tmp_path)))
    uninterrupted = run(tmp_path, *arguments, "--run-dir", "uninterrupted")
    assert uninterrupted.code == 0, uninterrupted.stderr
    actions = {(event.step, tuple(event.samples)): event.action for event in uninterrupted.events_of(protocol.BadStep)}
    assert set(actions.values()) == {"skipped" if action == "skip" else "rolled_back"}
    process = start(tmp_path, *arguments, "--run-dir", "killed")
    read_until(process, reached_step(33))
    process.kill()
    process.communicate()
    resumed = run(tmp_path, "train", "--resume", "killed")
    assert resumed.code == 0, resumed.stderr
    assert not [event for event in resumed.events_of(protocol.Warn) if event.code == "resume.not_exact"]
    assert {(event.step, tuple(event.samples)) for event in resumed.events_of(protocol.BadStep)} <= actions.keys()
    for file in ("model.safetensors", "optimizer.safetensors"):
        path = f"checkpoints/step-{STEPS:08d}/{file}"
        assert (tmp_path / "killed" / path).read_bytes() == (tmp_path / "uninterrupted" / path).read_bytes(), file
    assert learning_rates(resumed).items() <= learning_rates(uninterrupted).items()
    assert resumed.losses.items() <= uninterrupted.losses.items()
    evals = [
        {event.step: event.loss for event in result.events_of(protocol.Eval)} for result in (resumed, uninterrupted)
    ]
    assert evals[0].items() <= evals[1].items()


def learning_rates(result: TrainerResult) -> dict[int, float]:
    return {event.step: event.learning_rate for event in result.events_of(protocol.Step)}
