"""Logs a run to Weights & Biases, from a child process: `python -m trainer_core.trackers.wandb RUN`.

wandb asks for log-ins, waits for networks, patches streams and may block the exit of a process. None of that may affect
training: `WandbSink` only queues events, and a thread writes them to the child's stdin. The child reports problems on
stdout as `{"problem": "…"}`. What it cannot upload stays in the run's folder for `wandb sync`. wandb's own environment
variables apply. No torch, no Qt, and no wandb in the trainer's process.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import msgspec

from trainer_core import protocol
from trainer_core.messages import TraindeckError
from trainer_core.runs import run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import child_process, files
from trainer_core.wire import StreamSink

_LOGGED_EVENTS: Final = (protocol.Step, protocol.Eval, protocol.Hardware, protocol.Sample, protocol.Done)
_CLOSE_TIMEOUT_S: Final = 15.0  # of the trainer; the upload continues without it
_INIT_TIMEOUT_S: Final = 30
_UPLOAD_TIMEOUT_S: Final = 300.0
_EXCLUDED_FIELDS: Final = ("type", "t", "seq", "step")


class WandbSink:
    """A sink of `wire.EventDispatcher`. The run has its `config.yaml`. Raises `wandb.unavailable` if wandb is not
    installed.

    The first later problem (no log-in, no network) is kept in `problem` and passed to `on_problem`, from a thread.
    """

    def __init__(self, run_path: Path, on_problem: Callable[[TraindeckError], None]) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise _unavailable_error("No module named 'wandb'")
        self.problem: TraindeckError | None = None
        self._on_problem = on_problem
        self._child = _start_child(run_path)
        self._input = cast("BinaryIO", self._child.stdin)
        self._stream = StreamSink(self._input)
        self._reader = threading.Thread(target=self._read_problems, name="wandb", daemon=True)
        self._reader.start()

    def write(self, event: protocol.AnyEvent) -> None:
        """Queue an event; never waits, never raises."""
        if isinstance(event, _LOGGED_EVENTS) and self.problem is None:
            self._stream.write(event)

    def close(self) -> None:
        """Finish the run. Waits for the upload, but only for a few seconds: it continues after this process exits."""
        if self._stream.close():
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
            self.problem = _unavailable_error(reason)
            with contextlib.suppress(Exception):  # the run may have ended
                self._on_problem(self.problem)


def _unavailable_error(reason: str) -> TraindeckError:
    return TraindeckError("wandb.unavailable", reason=reason.rstrip("."))


def _run_id(run_path: Path) -> str:
    """Stored in the run's folder, so that a resumed run continues the same wandb run."""
    path = run_path / "wandb-id.txt"
    with contextlib.suppress(OSError):
        known = path.read_text(encoding="ascii", errors="ignore").strip()
        if known.isalnum():
            return known
    run_id = secrets.token_hex(6)
    with contextlib.suppress(OSError):
        files.write_atomic(path, run_id.encode("ascii"))
    return run_id


def _start_child(run_path: Path) -> subprocess.Popen[bytes]:
    quiet = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_DISABLE_GIT": "true", "WANDB_DISABLE_CODE": "true"}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "trainer_core.trackers.wandb", str(run_path)],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**quiet, **child_process.environment(PYTHONUTF8="1")},
        # Own session: Ctrl+C does not reach it, and it has no terminal to ask for a log-in.
        start_new_session=os.name != "nt",
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


# --- in the child ------------------------------------------------------------------------------------------


def _main(run_path: Path, lines: BinaryIO, output: BinaryIO) -> int:
    """Log the events in `lines` to their end. Returns the exit code."""
    try:
        wandb: Any = importlib.import_module("wandb")
        run = _start_run(wandb, run_path, output)
    except Exception as error:  # noqa: BLE001 - wandb raises many types, and training continues without it
        _report_problem(output, error)
        return 0
    for line in lines:
        try:
            _log_event(wandb, run, protocol.decode_event(line))
        except Exception as error:  # noqa: BLE001 - as above
            _report_problem(output, error)
    watchdog = threading.Timer(_UPLOAD_TIMEOUT_S, os._exit, (1,))
    watchdog.daemon = True
    watchdog.start()
    run.finish()
    return 0


def _start_run(wandb: Any, run_path: Path, output: BinaryIO) -> Any:
    """Start or resume a run; offline if the service does not respond."""
    config = run_dir.read_yaml(RunDir(run_path).config)
    arguments = {
        "project": config.get("wandb_project"),
        "id": _run_id(run_path),
        "name": run_path.name,
        "dir": str(run_path),
        "config": config,
    }
    try:
        run = wandb.init(**arguments, resume="allow", settings=wandb.Settings(init_timeout=_INIT_TIMEOUT_S))
    except wandb.errors.CommError as error:
        _report_problem(output, error)
        run = wandb.init(**arguments, resume="allow", mode="offline")
    run.define_metric("*", step_metric="step")
    return run


def _report_problem(output: BinaryIO, error: Exception) -> None:
    text = str(error).strip().splitlines() or [type(error).__name__]
    with contextlib.suppress(OSError):  # the trainer has exited
        output.write(json.dumps({"problem": text[0]}).encode("ascii") + b"\n")
        output.flush()


def _log_event(wandb: Any, run: Any, event: protocol.AnyEvent) -> None:
    match event:
        case protocol.Step():
            run.log({"step": event.step, **_flatten("train", event)})
        case protocol.Eval():
            run.log({"step": event.step, **_flatten("eval", event)})
        case protocol.Hardware():
            values = _flatten("host", event.host)
            for gpu in event.gpus:
                values |= _flatten(f"gpu/{gpu.index}", gpu)
            run.log(values)
        case protocol.Sample():
            columns = ["step", "prompt", "text", "expected"]
            row = [event.step, event.prompt, event.text, event.expected]
            run.log({"step": event.step, "sample": wandb.Table(columns=columns, data=[row])})
        case protocol.Done():
            run.summary.update(_flatten("done", event))


def _flatten(prefix: str, part: msgspec.Struct) -> dict[str, float]:
    """Numbers of a struct by path: `train/loss`, `train/time_ms/data`."""
    found: dict[str, float] = {}
    for name in part.__struct_fields__:
        value = getattr(part, name)
        if isinstance(value, msgspec.Struct):
            found |= _flatten(f"{prefix}/{name}", value)
        elif isinstance(value, int | float) and name not in _EXCLUDED_FIELDS:
            found[f"{prefix}/{name}"] = value
    return found


if __name__ == "__main__":
    _output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keeps what libraries print apart
    sys.exit(_main(Path(sys.argv[1]), sys.stdin.buffer, _output))
