"""A minimal run without faults, which every run with faults must equal, and the checks of a run's state."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from app.core import command_line
from bench.processes import ChildProcess, Events, python
from tests.core.trainer_process import text_file
from trainer_core.runs import checkpoint_dir

SAVE_STEPS: Final = 2
TRAINER: Final = python("trainer_core")
TIMEOUT_S: Final = 300.0  # of a process that takes some seconds, on a busy machine
_COMPARED_FILES: Final = ("model.safetensors", "optimizer.safetensors", "tokenizer.json", "config.json")
_KNOBS: Final[dict[str, Any]] = {
    "hidden_dim": 32, "n_layers": 1, "n_heads": 1, "max_seq_len": 32, "vocab_size": 320, "batch_size": 2,
    "dropout": 0.1, "warmup_steps": 2, "learning_rate": 3e-3, "save_steps": SAVE_STEPS, "keep_last": 2,
    "log_steps": 1, "eval_steps": 5, "eval_batches": 4, "sample_steps": 0, "sample_tokens": 1, "perf_steps": 0,
    "cpu_threads": 1, "device": "cpu", "compile": "off", "attention": "math", "chunked_loss": "off", "num_workers": 0,
    "restarts": 0,
}  # fmt: skip


class ReferenceRun:
    """The run, with its data in `home`. `knobs` override the default ones. Call `train` before comparing runs."""

    def __init__(self, home: Path, steps: int, **knobs: Any) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.steps, self.path = home, steps, home / "reference"
        self._data, self._knobs = text_file(home, lines=2000), {**_KNOBS, "max_steps": steps, **knobs}
        self._losses: dict[int, float | None] = {}
        self.seconds = 0.0  # of its process

    def train(self) -> Self:
        """Train without faults. Raises `RuntimeError` if that fails."""
        child = self.start(self.path, self.home)
        child.wait(TIMEOUT_S, allowed=[0])
        self.seconds = time.time() - child.started_at
        self._losses = {event["step"]: event["loss"] for event in child.events.of("step")}
        return self

    def arguments(self, run_dir: Path, **knobs: Any) -> list[str]:
        """Arguments of the trainer for the same run in another folder, started or resumed."""
        if (run_dir / "config.yaml").is_file():
            arguments = command_line.resume_arguments(str(run_dir))
        else:
            arguments = command_line.train_arguments(None, {**self._knobs, **knobs}, [str(self._data)], str(run_dir))
        return [*arguments, "--output", "json"]

    def start(self, run_dir: Path, home: Path, program: Sequence[str] = TRAINER, **knobs: Any) -> ChildProcess:
        """Start or resume the same run in another folder. `home`: folder of its token cache."""
        return ChildProcess([*program, *self.arguments(run_dir, **knobs)], {"TRAINDECK_HOME": str(home)})

    def loss_problems(self, events: Events) -> list[str]:
        """Steps whose loss differs."""
        steps = [event["step"] for event in events.of("step") if event["loss"] != self._losses.get(event["step"])]
        return [f"the loss of step {step} differs" for step in steps]

    def end_problems(self, child: ChildProcess, run_dir: Path) -> list[str]:
        """Differences after the last process has exited."""
        failure = [child.describe_exit()] if child.exit_code else []
        return [*failure, *self.loss_problems(child.events), *self.file_problems(run_dir)]

    def file_problems(self, run_dir: Path) -> list[str]:
        """Files of the last checkpoint that differ."""
        problems = []
        own, other = (path / "checkpoints" / checkpoint_dir.folder_name(self.steps) for path in (self.path, run_dir))
        for name in _COMPARED_FILES:
            if not (other / name).is_file() or (other / name).read_bytes() != (own / name).read_bytes():
                problems.append(f"{name} differs from the reference run")
        return problems


def newest_checkpoint(run_dir: Path) -> tuple[int, list[str]]:
    """Step of the newest valid checkpoint (0: none), and the problems of invalid ones."""
    step, problems = 0, []
    for folder in checkpoint_dir.list_checkpoints(run_dir / "checkpoints"):
        if reason := checkpoint_dir.find_problem(folder):
            problems.append(f"{folder.name}: {reason}")
        else:
            step = int(folder.name.removeprefix("step-"))
    return step, problems
