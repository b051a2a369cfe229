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

    def start(self, checkpoint: Path, options: EvaluationOptions) -> None:
        """Evaluate, unless an evaluation is running. The results go to the folder of the run."""
        self.run_command(["evaluate", str(checkpoint), *options.arguments()])
