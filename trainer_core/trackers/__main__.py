"""Logs the events of stdin to a tracker: `python -m trainer_core.trackers NAME RUN STEP TRAINER_PID`.

STEP: step at which the trainer continues the run. Problems go to stdout as `{"problem": "…"}`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import psutil

from trainer_core import protocol
from trainer_core.runs import file_locks, run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system.redaction import Masker
from trainer_core.trackers.tracker import Tracker

_UPLOAD_TIMEOUT_S: Final = 300.0  # after the exit of the trainer
_EXCLUDED_FIELDS: Final = ("type", "t", "seq", "step")
_METRIC_PREFIXES: Final = {
    protocol.Step: "train",
    protocol.Eval: "eval",
    protocol.Performance: "performance",
    protocol.Rollouts: "rollouts",
}


_NOT_IN_NAMES: Final = re.compile(r"[^\w .:-]")  # of metrics in MLflow; a reward may be a regular expression


def main(name: str, run: RunDir, first_step: int, lines: BinaryIO, output: BinaryIO) -> None:
    """Log the events in `lines` to their end."""

    def report(error: Exception) -> None:
        text = str(error).strip().splitlines() or [type(error).__name__]
        problem = {"problem": Masker.for_this_machine().mask(text[0])}
        with contextlib.suppress(OSError):  # the trainer has exited
            output.write(json.dumps(problem).encode("ascii") + b"\n")
            output.flush()

    try:
        with file_locks.wait_for_lock(run.path / f"{name}.lock"):  # of an earlier process of the run that still uploads
            module: Any = importlib.import_module(f"trainer_core.trackers.{name}")
            tracker: Tracker = module.start(run, run_dir.read_yaml(run.config), report)
            log = _EventLog(tracker, first_step, run.path / f"{name}-steps.json")
            for line in lines:
                try:
                    log.add(protocol.decode_event(line))
                except Exception as error:  # noqa: BLE001 - as below; the next event may succeed
                    report(error)
            tracker.finish(log.succeeded)
    except Exception as error:  # noqa: BLE001 - trackers raise many types, and training continues without them
        report(error)


class _EventLog:
    """Passes events to a tracker.

    Steps are repeated after a resume and after a rollback. A tracker that cannot discard the first values keeps them,
    and the repeated ones are not logged: the file at `path` holds the highest step by type of event that it has.
    """

    def __init__(self, tracker: Tracker, first_step: int, path: Path) -> None:
        self._tracker, self._path = tracker, path
        self._step, self._sample = first_step, (first_step, 0)  # the last one; samples have the same step
        self._is_rolled_back = self.succeeded = False
        self._logged: dict[str, int] = {}
        self._keeps_first = not tracker.rewind(first_step + 1)
        if self._keeps_first:
            with contextlib.suppress(OSError, ValueError):
                self._logged = msgspec.json.decode(path.read_bytes(), type=dict[str, int])

    def add(self, event: protocol.AnyEvent) -> None:
        match event:
            case protocol.BadStep(action="rolled_back"):
                self._is_rolled_back = True
            case protocol.Step() | protocol.Eval() | protocol.Performance() | protocol.Rollouts() | protocol.Sample():
                self._add_at_step(event)
            case protocol.Hardware():
                values = _flatten("host", event.host)
                for gpu in event.gpus:
                    values |= _flatten(f"gpu/{gpu.index}", gpu)
                self._tracker.log_metrics(self._step, values, event.t)
            case protocol.Done():
                self.succeeded = True
                self._tracker.log_metrics(event.steps, _flatten("done", event), event.t)

    def _add_at_step(
        self, event: protocol.Step | protocol.Eval | protocol.Performance | protocol.Rollouts | protocol.Sample
    ) -> None:
        if self._is_rolled_back:
            self._tracker.rewind(event.step)
        self._is_rolled_back = False
        kind = type(event).__name__.lower()
        if self._keeps_first and event.step <= self._logged.get(kind, -1):
            return
        self._step = event.step
        if isinstance(event, protocol.Sample):
            self._add_sample(event)
        else:
            self._logged[kind] = event.step
            self._tracker.log_metrics(event.step, _flatten(_METRIC_PREFIXES[type(event)], event), event.t)
        if self._keeps_first:
            with contextlib.suppress(OSError):
                self._path.write_bytes(msgspec.json.encode(self._logged))

    def _add_sample(self, sample: protocol.Sample) -> None:
        step, number = self._sample
        self._sample = sample.step, number + 1 if sample.step == step else 1
        self._logged["sample"] = sample.step - 1
        texts = {"prompt": sample.prompt, "text": sample.text, "expected": sample.expected}
        columns = {title: text for title, text in texts.items() if text is not None}
        self._tracker.log_text(sample.step, f"sample/{self._sample[1]}", columns)


def _flatten(prefix: str, part: msgspec.Struct) -> dict[str, float]:
    """Numbers of a struct by path: `train/loss`, `train/time_ms/data`."""
    found: dict[str, float] = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, msgspec.Struct):
            found |= _flatten(f"{prefix}/{name}", value)
        elif isinstance(value, dict):
            found |= {f"{prefix}/{name}/{_NOT_IN_NAMES.sub('_', key)}": number for key, number in value.items()}
        elif isinstance(value, int | float) and name not in _EXCLUDED_FIELDS:
            found[f"{prefix}/{name}"] = float(value)
    return found


def _exit_after(trainer_pid: int) -> None:
    """End this process some minutes after the trainer, whatever it waits for."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(trainer_pid).wait()
    time.sleep(_UPLOAD_TIMEOUT_S)
    os._exit(1)


if __name__ == "__main__":
    _name, _run, _step, _pid = sys.argv[1:]
    threading.Thread(target=_exit_after, args=(int(_pid),), daemon=True).start()
    _output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps what libraries print apart
    main(_name, RunDir(Path(_run)), int(_step), sys.stdin.buffer, _output)
