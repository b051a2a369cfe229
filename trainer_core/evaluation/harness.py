"""Tasks of the Language Model Evaluation Harness (`lm-eval`, an extra) on a checkpoint or model folder."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer_core import protocol
from trainer_core.base_model.weight_files import ADAPTER_CONFIG_FILE
from trainer_core.export import command as exporting
from trainer_core.generation.model_source import ModelSource
from trainer_core.messages import TraindeckError
from trainer_core.run_context import RunContext
from trainer_core.system import files


def run_tasks(
    source: ModelSource, tasks: Sequence[str], include_path: Path | None, device: str, target: Path, context: RunContext
) -> protocol.TaskScores:
    """Run `tasks`, and write everything that the harness returns to `target`. Downloads nothing.

    `include_path`: a folder with definitions of tasks. An adapter is merged into a temporary folder first.

    Raises `evaluate.no_harness`, `evaluate.bad_task`, as `export`, and `StopRequested`.
    """
    try:
        with _offline():
            import lm_eval
            from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise TraindeckError("evaluate.no_harness", str(error), python=sys.executable) from error
    manager = TaskManager(include_path=str(include_path) if include_path else None)
    if unknown := [name for name in tasks if name not in manager.all_tasks]:
        raise TraindeckError("evaluate.bad_task", tasks=", ".join(unknown))
    with _model_folder(source, context) as folder, context.interruptible():
        context.set_phase("evaluating")
        found: Any = lm_eval.simple_evaluate(
            "hf",
            model_args={"pretrained": str(folder), "dtype": "auto"},
            tasks=list(tasks),
            device=device,
            batch_size=1,
            task_manager=manager,
        )
    event = protocol.TaskScores(model=str(source.folder), path=str(target), scores=list(_scores(found["results"])))
    with files.translate_os_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"results": found["results"], **found}, ensure_ascii=False, indent=1, default=str)
        files.write_atomic(target, text.encode("utf-8", "replace"))
    return event


def holds_results(path: Path) -> bool:
    """Whether a file has no content, or begins as those of `run_tasks`."""
    with path.open("rb") as file:
        beginning = b"".join(file.read(64).split())
    return not beginning or beginning.startswith(b'{"results":')


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Around the first import of libraries of Hugging Face, which then never connect."""
    before = os.environ.copy()
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _model_folder(source: ModelSource, context: RunContext) -> Iterator[Path]:
    """A folder that transformers loads."""
    if not (source.folder / ADAPTER_CONFIG_FILE).is_file():
        yield source.folder
        return
    with tempfile.TemporaryDirectory(prefix="traindeck-merged-", ignore_cleanup_errors=True) as parent:
        context.set_phase("saving")
        yield exporting.export(source.folder, Path(parent, "model"), context).folder


def _scores(results: dict[str, dict[str, Any]]) -> Iterator[protocol.TaskScore]:
    """The numbers of each task. Keys of the harness: `acc,none` and `acc_stderr,none`."""
    for task, values in results.items():
        for key, value in values.items():
            metric, _, name = key.partition(",")
            if isinstance(value, float) and name and not metric.endswith("_stderr"):
                error = values.get(f"{metric}_stderr,{name}")
                stderr = error if isinstance(error, float) else None
                yield protocol.TaskScore(task=task, metric=metric, value=value, stderr=stderr)
