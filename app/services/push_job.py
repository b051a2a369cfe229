"""Upload of an export to the Hugging Face Hub in a separate process."""

from __future__ import annotations

from pathlib import Path

from app.services.trainer_job import TrainerJob
from trainer_core.protocol import HubUpload


class PushJob(TrainerJob[HubUpload]):
    """The result has an address if it was uploaded, and is a list of what would be uploaded otherwise."""

    result_type = HubUpload
    first_phase = "loading"
    unexpected_exit_key = "export.push_exited"

    def start(self, folder: Path, repository: str, *, public: bool, dry_run: bool) -> None:
        """`repository`: empty for the name of the folder. `dry_run`: only list what would be uploaded."""
        flags = ["--public"] if public else []
        self.run_command(["push", *flags, "--dry-run" if dry_run else "--yes", str(folder), repository])
