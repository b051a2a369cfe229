"""Evaluation of a checkpoint in a separate process."""

from __future__ import annotations

from pathlib import Path

from app.core.evaluations import EvaluationOptions
from app.services.trainer_job import TrainerJob
from trainer_core.protocol import Evaluation


class EvaluationJob(TrainerJob[Evaluation]):
    """Runs at most one evaluation at a time."""

    result_type = Evaluation
    first_phase = "preparing"
    unexpected_exit_key = "evaluate.exited"

    def start(self, model: Path, options: EvaluationOptions, results: Path | None = None) -> None:
        """Evaluate, unless an evaluation is running.

        `model`: a checkpoint, or a file of knobs for its base model. `results`: default: in the folder of the run.
        """
        flags = ["--results", str(results)] if results is not None else []
        self.run_command(["evaluate", str(model), *options.arguments(), *flags])
