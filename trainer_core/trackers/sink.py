"""The trainer's side of trackers: passes events to child processes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, cast

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.messages import TraindeckError
from trainer_core.system import child_process
from trainer_core.trackers import TITLES
from trainer_core.wire import EventDispatcher, StreamSink

_LOGGED_EVENTS: Final = (
    protocol.Step, protocol.Performance, protocol.Eval, protocol.Rollouts, protocol.Hardware, protocol.Sample,
    protocol.BadStep, protocol.Done,
)  # fmt: skip
_CLOSE_TIMEOUT_S: Final = 15.0  # of the trainer; the upload continues without it
_MODULES: Final = {"mlflow": ("mlflow", "sqlalchemy", "alembic")}  # others: of their own name
_PACKAGES: Final = {"mlflow": "mlflow-skinny sqlalchemy alembic"}  # for pip
_ENVIRONMENT: Final = {
    "WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_DISABLE_GIT": "true", "WANDB_DISABLE_CODE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}  # fmt: skip
"""Defaults, which the user's own variables override."""


def require_packages(name: str, python: str = sys.executable) -> None:
    """Raises `tracker.not_installed`, with the command of `python` that installs them."""
    if any(importlib.util.find_spec(module) is None for module in _MODULES.get(name, (name,))):
        packages = _PACKAGES.get(name, name)
        raise TraindeckError("tracker.not_installed", tracker=TITLES[name], packages=packages, python=python)


class TrackerSink:
    """A sink of `wire.EventDispatcher`. The run has its `config.yaml`; `step` is the one at which it continues.

    Raises `tracker.not_installed`. The first later problem (no log-in, no network) is kept in `problem` and passed to
    `on_problem`, from a thread.
    """

    def __init__(self, name: str, run_path: Path, step: int, on_problem: Callable[[TraindeckError], None]) -> None:
        require_packages(name)
        self.problem: TraindeckError | None = None
        self._name, self._on_problem = name, on_problem
        self._child = _start_child(name, run_path, step)
        self._input = cast("BinaryIO", self._child.stdin)
        self._stream = StreamSink(self._input)
        self._reader = threading.Thread(target=self._read_problems, name=name, daemon=True)
        self._reader.start()

    def write(self, event: protocol.AnyEvent) -> None:
        """Queue an event; never waits, never raises. The queue is bounded."""
        if isinstance(event, _LOGGED_EVENTS):
            self._stream.write(event)

    def close(self) -> None:
        """Finish the run. Waits for the upload, but only for a few seconds: it continues after this process exits."""
        if not self._stream.close():
            return  # the tracker hangs
        with contextlib.suppress(OSError):  # the child has exited
            self._input.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_CLOSE_TIMEOUT_S)
            self._reader.join(1.0)

    def _read_problems(self) -> None:
        for line in cast("BinaryIO", self._child.stdout):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._set_problem(str(json.loads(line)["problem"]))
        code = self._child.wait()
        if code != 0:
            self._set_problem(f"exit code {code & 0xFFFFFFFF:#x}")

    def _set_problem(self, reason: str) -> None:
        if self.problem is None:
            tracker = TITLES[self._name]
            self.problem = TraindeckError("tracker.problem", tracker=tracker, reason=reason.rstrip("."))
            with contextlib.suppress(Exception):  # the run may have ended
                self._on_problem(self.problem)


def _start_child(name: str, run_path: Path, step: int) -> subprocess.Popen[bytes]:
    arguments = [name, str(run_path), str(step), str(os.getpid())]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "trainer_core.trackers", *arguments],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**_ENVIRONMENT, **child_process.environment()},
        # Own session: Ctrl+C does not reach it, and it has no terminal to ask for a log-in.
        start_new_session=os.name != "nt",
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


def add_trackers(
    config: Config, run_path: Path, step: int, dispatcher: EventDispatcher, warn: Callable[..., object]
) -> None:
    """Log a run that continues at `step` to the trackers that are on. `warn`: `RunContext.warn`."""

    def warn_of(problem: TraindeckError) -> None:
        warn(problem.code, **problem.params)

    for name in TITLES:
        if getattr(config, f"use_{name}"):
            try:
                dispatcher.add_sink(TrackerSink(name, run_path, step, warn_of))
            except TraindeckError as error:
                warn_of(error)
