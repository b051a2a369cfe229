"""MLflow: a server, or a database in Traindeck's folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from trainer_core.runs import file_locks
from trainer_core.runs.run_dir import RunDir, home
from trainer_core.trackers.tracker import Report, store_id, stored_id

_MAX_PARAM_LENGTH: Final = 500  # characters that every version of MLflow accepts


def start(run: RunDir, config: Mapping[str, Any], report: Report) -> MlflowRun:
    """Start or resume a run at `mlflow_tracking_uri`, else `MLFLOW_TRACKING_URI`, else in the local database."""
    if uri := config.get("mlflow_tracking_uri") or os.environ.get("MLFLOW_TRACKING_URI"):
        return _start_run(MlflowClient(uri), run, config, None)
    with file_locks.wait_for_lock(home() / "mlflow.lock"):  # two processes that create the database damage it
        client = MlflowClient(f"sqlite:///{(home() / 'mlflow.db').as_posix()}")
        return _start_run(client, run, config, home() / "mlflow")


def _start_run(client: MlflowClient, run: RunDir, config: Mapping[str, Any], files: Path | None) -> MlflowRun:
    """`files`: where a new experiment stores files; None: where the server says."""
    path = run.path / "mlflow-id.txt"
    if known := stored_id(path):
        try:
            client.update_run(known, status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # deleted, or another store
                raise
        else:
            return MlflowRun(client, known)
    created = client.create_run(_experiment(client, files), run_name=run.path.name)
    run_id = store_id(path, created.info.run_id)
    client.log_batch(run_id, params=[Param(name, str(value)[:_MAX_PARAM_LENGTH]) for name, value in config.items()])
    return MlflowRun(client, run_id)


def _experiment(client: MlflowClient, files: Path | None) -> str:
    """Identifier of the experiment, which is created if it does not exist."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "traindeck")
    if found := client.get_experiment_by_name(name):
        return str(found.experiment_id)
    return str(client.create_experiment(name, artifact_location=files.as_uri() if files else None))


class MlflowRun:
    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client, self._run_id = client, run_id

    def rewind(self, step: int) -> bool:
        return False

    def log_metrics(self, step: int, values: Mapping[str, float], time: float) -> None:
        metrics = [Metric(name, value, round(1000 * time), step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def log_text(self, step: int, name: str, columns: Mapping[str, str]) -> None:
        text = "\n\n".join(f"{title}:\n{content}" for title, content in columns.items())
        self._client.log_text(self._run_id, text, f"{name}/{step:08d}.txt")

    def finish(self, succeeded: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if succeeded else "FAILED")
