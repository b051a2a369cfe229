"""Work with another machine in a separate process."""

from __future__ import annotations

from pathlib import Path

from app.core.settings import RemoteMachine
from app.services.trainer_job import TrainerJob
from trainer_core.protocol import RemoteCheck


class RemoteJob(TrainerJob[RemoteCheck]):
    """The result describes the machine."""

    result_type = RemoteCheck
    first_phase = "connecting"
    unexpected_exit_key = "services.remote_exited"

    def check(self, machine: RemoteMachine) -> None:
        self.run_command(["remote", "check", machine.host, f"--folder={machine.folder}"])

    def fetch(self, run: Path) -> None:
        """Bring the checkpoints of a run here."""
        self.run_command(["remote", "fetch", str(run)])
