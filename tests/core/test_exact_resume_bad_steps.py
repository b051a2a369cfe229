"""Runs with Muon, a plateau schedule and bad steps resume exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.test_exact_resume import read_until
from tests.core.trainer import TINY, Ended, run, start, text_file
from trainer_core import protocol

STEPS = 40
# Norms fall as the model learns, so this factor below one makes a few late steps spikes.
ARGUMENTS = (
    "train", *TINY, "--gradient-accumulation-steps", "1", "--max-steps", str(STEPS), "--save-steps", "6",
    "--keep-last", "1", "--keep-best", "0", "--sample-steps", "0", "--eval-steps", "4", "--optimizer", "muon",
    "--lr-schedule", "plateau", "--plateau-patience", "1", "--spike-factor", "0.62",
)  # fmt: skip


@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_a_run_with_bad_steps_resumes_exactly(tmp_path: Path, action: str) -> None:
    arguments = (*ARGUMENTS, "--on-bad-step", action, "--data", str(text_file(tmp_path)))
    whole = run(tmp_path, *arguments, "--run-dir", "whole")
    assert whole.code == 0, whole.stderr
    told = {(event.step, tuple(event.samples)): event.action for event in whole.of(protocol.BadStep)}
    assert set(told.values()) == {"skipped" if action == "skip" else "rolled_back"}
    process = start(tmp_path, *arguments, "--run-dir", "killed")
    read_until(process, 33)
    process.kill()
    process.communicate()
    resumed = run(tmp_path, "train", "--resume", "killed")
    assert resumed.code == 0, resumed.stderr
    assert not [event for event in resumed.of(protocol.Warn) if event.code == "resume.not_exact"]
    assert {(event.step, tuple(event.samples)) for event in resumed.of(protocol.BadStep)} <= told.keys()
    for file in ("model.safetensors", "optimizer.safetensors"):
        end = f"checkpoints/step-{STEPS:08d}/{file}"
        assert (tmp_path / "killed" / end).read_bytes() == (tmp_path / "whole" / end).read_bytes(), file
    assert rates(resumed).items() <= rates(whole).items()
    assert resumed.losses.items() <= whole.losses.items()
    evals = [{event.step: event.loss for event in ended.of(protocol.Eval)} for ended in (resumed, whole)]
    assert evals[0].items() <= evals[1].items()


def rates(ended: Ended) -> dict[int, float]:
    return {event.step: event.learning_rate for event in ended.of(protocol.Step)}
