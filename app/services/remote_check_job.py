"""Check of another machine in a separate process."""

from __future__ import annotations

from app.core.settings import RemoteMachine
from app.services.trainer_job import TrainerJob
from trainer_core.protocol import RemoteCheck


class RemoteCheckJob(TrainerJob[RemoteCheck]):
    """The result describes the machine."""

    result_type = RemoteCheck
    first_phase = "connecting"
    unexpected_exit_key = "setup.machine_check_exited"

    def start(self, machine: RemoteMachine) -> None:
        self.run_command(["remote", "check", machine.host, f"--folder={machine.folder}"])
