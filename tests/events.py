"""Events of a run, with defaults for the fields that a test does not check."""

from __future__ import annotations

from typing import Any

from trainer_core import protocol


def hello(t: float = 0.0, **fields: Any) -> protocol.Hello:
    defaults = {"pid": 1, "run_dir": "runs/a", "traindeck": "0", "python": "3", "torch": "2"}
    return protocol.Hello(t=t, **{**defaults, **fields})


def step(number: int, t: float = 0.0, loss: float | None = 1.0, **fields: Any) -> protocol.Step:
    defaults = {
        "epoch": 0.1,
        "tokens": 100 * number,
        "samples": number,
        "learning_rate": 1e-3,
        "tokens_per_s": 1000.0,
        "samples_per_s": 5.0,
        "time_ms": protocol.StepTime(data=1, transfer=2, forward=3, backward=4, optimizer=5, other=6),
    }
    return protocol.Step(t=t, step=number, loss=loss, **{**defaults, **fields})


def rollouts(number: int, **fields: Any) -> protocol.Rollouts:
    defaults = {
        "answers": 8,
        "reward": 0.5,
        "reward_std": 0.4,
        "scores": {"exact": 0.5},
        "answer_tokens": 6.5,
        "truncated_ratio": 0.0,
        "no_signal_ratio": 0.5,
        "seconds": 1.0,
    }
    return protocol.Rollouts(t=float(number), step=number, **{**defaults, **fields})


def checkpoint(step: int, t: float = 0.0) -> protocol.Checkpoint:
    return protocol.Checkpoint(t=t, step=step, path=f"step {step}", bytes=1, seconds=1.0, kind="regular")
