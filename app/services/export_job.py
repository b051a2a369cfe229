"""Export of a checkpoint in a separate process, which writes and verifies gigabytes."""

from __future__ import annotations

from pathlib import Path

from app.core.export_options import ExportOptions
from app.services.trainer_job import TrainerJob
from app.texts import current_language
from trainer_core.messages import ExitCode
from trainer_core.protocol import Verification


class ExportJob(TrainerJob[Verification]):
    """Runs at most one export at a time."""

    result_type = Verification
    first_phase = "saving"
    unexpected_exit_key = "export.exited"
    success_codes = frozenset({ExitCode.FINISHED, ExitCode.NOT_VERIFIED})
    _target: Path | None = None

    @property
    def target(self) -> Path | None:
        """Folder of the last export; it exists once the export is complete. None: nothing was written."""
        return self._target if self.is_running or self.is_complete else None

    def start(self, checkpoint: Path, target: Path, options: ExportOptions) -> None:
        """Export to the new folder `target`, unless an export is running."""
        if not self.is_running:
            self._target = target
            arguments = [str(checkpoint), str(target), *options.arguments(), "--language", current_language()]
            self.run_command(["export", *arguments])
