"""Weights & Biases. What cannot be uploaded stays in the run's folder for `wandb sync`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import wandb

from trainer_core.runs.run_dir import RunDir
from trainer_core.trackers.tracker import Report, store_id, stored_id

_INIT_TIMEOUT_S: Final = 30


def start(run: RunDir, config: Mapping[str, Any], report: Report) -> WandbRun:
    """Start or resume a run; offline if the service does not respond."""
    path = run.path / "wandb-id.txt"
    arguments: dict[str, Any] = {
        "project": config.get("wandb_project"),
        "id": stored_id(path) or store_id(path, secrets.token_hex(6)),
        "name": run.path.name,
        "dir": str(run.path),
        "config": config,
        "resume": "allow",
    }
    try:
        session = wandb.init(**arguments, settings=wandb.Settings(init_timeout=_INIT_TIMEOUT_S))
    except wandb.errors.CommError as error:
        report(error)
        session = wandb.init(**arguments, mode="offline")
    session.define_metric("*", step_metric="step")
    return WandbRun(session)


class WandbRun:
    def __init__(self, run: Any) -> None:
        self._run = run

    def rewind(self, step: int) -> bool:
        return False

    def log_metrics(self, step: int, values: Mapping[str, float], time: float) -> None:
        self._run.log({"step": step, **values})

    def log_text(self, step: int, name: str, columns: Mapping[str, str]) -> None:
        self._run.log({"step": step, name: wandb.Table(columns=list(columns), data=[list(columns.values())])})

    def finish(self, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)
