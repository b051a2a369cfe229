"""Runs on packed conversations or separated documents resume exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.core.trainer_process import TINY, TrainerResult, run
from trainer_core import protocol

STEPS = 18  # more than an epoch


def write_rows(folder: Path, kind: str) -> Path:
    """Conversations or texts, short enough for several in a sequence."""
    path = folder / f"{kind}.jsonl"
    if kind == "packed":
        rows = [{"prompt": f"{n}+1", "response": str(n + 1) * (1 + n % 3)} for n in range(420)]
    else:
        rows = [{"text": f"{n}: " + "abc" * (n % 12)} for n in range(420)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def train(home: Path, name: str, *arguments: str) -> TrainerResult:
    result = run(home, "train", *TINY, "--save-steps", "6", "--sample-steps", "0", "--run-dir", name, *arguments)
    assert result.code == 0, result.stderr
    return result


@pytest.mark.parametrize(("kind", "flag"), [("packed", "--packing"), ("apart", "--no-attend-across-documents")])
def test_a_packed_run_resumes_exactly(tmp_path: Path, kind: str, flag: str) -> None:
    data = ("--data", str(write_rows(tmp_path, kind)), "--max-seq-len", "64", flag)
    uninterrupted = train(tmp_path, "uninterrupted", *data, "--max-steps", str(STEPS), "--num-workers", "0")
    ready = uninterrupted.events_of(protocol.Ready)[0]
    assert ready.steps_per_epoch < STEPS
    assert (ready.fill is not None) == (kind == "packed")
    # The same run with loader processes, and a resume from its checkpoint within an epoch.
    continuous = run(
        tmp_path, "train", *TINY, *data, "--max-steps", str(STEPS), "--save-steps", "7", "--sample-steps", "0",
        "--run-dir", "workers", "--num-workers", "2", "--keep-last", "9",
    )  # fmt: skip
    assert continuous.code == 0, continuous.stderr
    checkpoint = tmp_path / "workers" / "checkpoints" / "step-00000007"
    resumed = run(tmp_path, "train", "--resume", str(checkpoint), "--run-dir", "resumed", "--num-workers", "0")
    assert resumed.code == 0, resumed.stderr
    assert not resumed.events_of(protocol.Warn)
    assert min(resumed.losses) == 8
    assert resumed.losses.items() <= uninterrupted.losses.items()
    for name in ("workers", "resumed"):
        for file in ("model.safetensors", "optimizer.safetensors"):
            path = f"checkpoints/step-{STEPS:08d}/{file}"
            assert (tmp_path / name / path).read_bytes() == (tmp_path / "uninterrupted" / path).read_bytes(), (
                name,
                file,
            )


def test_a_resume_with_other_packing_is_rejected(tmp_path: Path) -> None:
    data = ("--data", str(write_rows(tmp_path, "packed")), "--max-seq-len", "64", "--eval-steps", "0")
    train(tmp_path, "run", *data, "--max-steps", "2", "--packing")
    resumed = run(tmp_path, "train", "--resume", "run", "--max-steps", "3", "--no-packing")
    assert (resumed.code, resumed.error.code) == (2, "resume.order_changed")
    assert resumed.error.params == {"setting": "packing", "before": "True", "after": "False"}
