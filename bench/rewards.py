"""Learning from rewards: how far GRPO raises the exact match of a half-trained model, and in what time.

    python -m bench.rewards                     about ten minutes on two cores
    python -m bench.rewards --steps 50          to try it
    python -m bench.rewards --seed 7            another start: of both runs

A run of the preset `quickstart_sft` is taken at step 80, where about half of the held-out prompts are answered exactly.
A second run continues from it with rewards alone: 1 if the answer to a training prompt is exact, otherwise 0.
Exact match: of greedy answers to 256 held-out prompts. Time: of the second run, evaluations included.
"""

import argparse
from pathlib import Path
from typing import Any, Final

from bench import processes, results

TARGET: Final = 0.9
_STARTING_STEP: Final = 80
_SETTINGS: Final = {
    "objective": "grpo", "rewards": "exact", "data": "builtin:tasks", "max_seq_len": 64, "rollout_max_new_tokens": 16,
    "batch_size": 256, "group_size": 8, "rollout_temperature": 2.5, "optimizer": "muon", "muon_momentum": 0.95,
    "learning_rate": 1e-3, "lr_schedule": "constant", "warmup_steps": 0,
    "eval_batches": 2, "eval_examples": 256, "save_steps": 0, "sample_steps": 0, "log_steps": 5, "device": "cpu",
}  # fmt: skip


def start(run_dir: Path, *arguments: str) -> processes.ChildProcess:
    options = ("--run-dir", run_dir, "--output", "json", "--control", "stdin")
    command = processes.python("trainer_core", "train", *arguments, *options)
    return processes.ChildProcess(command, {"TRAINDECK_HOME": str(run_dir.parent)})


def measure(folder: Path, steps: int, seed: int) -> list[dict[str, Any]]:
    """Train both runs. Returns the evaluations of the second."""
    seeded = ("--seed", str(seed))
    examples = start(folder / "examples", "--preset", "quickstart_sft", "--save-steps", str(_STARTING_STEP), *seeded)
    examples.wait_until(lambda events: bool(events.of("checkpoint")))
    examples.request_stop()
    examples.wait()
    checkpoint = folder / "examples" / "checkpoints" / f"step-{_STARTING_STEP:08d}"
    options = {**_SETTINGS, "base_model": checkpoint, "max_steps": steps, "eval_steps": max(1, steps // 10)}
    flags = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    rewards = start(folder / "rewards", *flags, "--eval-on-start", *seeded)
    rewards.wait(allowed=[0])
    began = rewards.events.first("hello")["t"]
    return [
        {"step": one["step"], "exact match": one["exact_match"], "seconds": round(one["t"] - began)}
        for one in rewards.events.of("eval")
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.rewards", description=__doc__)
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--seed", type=int, default=1234)
    args = parser.parse_args()
    with results.benchmark("rewards") as report:
        found = measure(report.folder, args.steps, args.seed)
        best = max(one["exact match"] for one in found)
        report.lines = [results.markdown_table(found), "", f"Best: {best:.1%} (target: over {TARGET:.0%})"]
        report.document = {"settings": _SETTINGS, "seed": args.seed, "evaluations": found}
