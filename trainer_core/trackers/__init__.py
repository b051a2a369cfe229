"""Experiment trackers, fed by the events of a run: TensorBoard, Weights & Biases, MLflow.

Trackers ask for log-ins, wait for networks, patch streams and may block the exit of a process. None of that may affect
training, so each runs in a child process. `sink` is the trainer's side, `__main__` the child's; both are without torch
and Qt.
"""

from __future__ import annotations

from typing import Final

TITLES: Final = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases", "mlflow": "MLflow"}
"""Names of the trackers, by module. The setting `use_MODULE` turns one on."""
