"""The base model `preset:NAME`: the newest finished run of a preset, which is trained first if there is none. No torch.

It is a run like any other, in runs/, trained by a child process.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from trainer_core import presets, protocol, rank_info
from trainer_core.config import ConfigLayer, knobs, resolve
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.presets import Preset
from trainer_core.progress import Reporter, StopRequested
from trainer_core.runs import run_dir
from trainer_core.runs.run_dir import RunDir, RunSummary
from trainer_core.system import child_process

PREFIX: Final = "preset:"
_POLL_S: Final = 0.1
_KNOB_GROUPS: Final = ("data", "model", "training")  # that the weights depend on


def find_or_train(name: str, device: str, reporter: Reporter) -> Path:
    """The folder of the newest finished run of a preset with its own settings; trains it on `device` if there is none.

    A stop also stops that training, which the next call resumes. Raises what `presets.load` and training raise,
    `base_model.not_trained` for a crash, and `StopRequested`.
    """
    if (finished := find_finished(name)) is not None:
        return finished
    started = next((run for run in _find_runs(name) if run.resumable), None)
    path = started.path if started else run_dir.new_run_path(run_dir.runs_root(), name)
    arguments = ["--resume", str(path)] if started else ["--preset", name, "--run-dir", str(path)]
    with reporter.phase("training_base"):
        _train(RunDir(path), [*arguments, "--device", device], reporter)
    return path


def find_finished(name: str) -> Path | None:
    """The folder that `find_or_train` returns without training. Raises what `presets.load` raises."""
    return next((run.path for run in _find_runs(name) if run.state == "finished"), None)


def _find_runs(name: str) -> list[RunSummary]:
    """Runs of a preset with its own settings that have checkpoints, newest first."""
    preset = presets.load(name)
    return [run for run in run_dir.list_runs(run_dir.runs_root()) if run.checkpoints and _has_settings_of(run, preset)]


def _has_settings_of(run: RunSummary, preset: Preset) -> bool:
    """Whether a run has the settings of the preset that the weights depend on."""
    if run.preset != preset.name:
        return False
    with contextlib.suppress(TraindeckError):  # the settings of another version
        config, expected = resolve([ConfigLayer("", run_dir.read_yaml(RunDir(run.path).config))]), preset.config()
        relevant = (name for name, knob in knobs().items() if knob.group in _KNOB_GROUPS)
        return all(getattr(config, name) == getattr(expected, name) for name in relevant)
    return False


def _train(run: RunDir, arguments: list[str], reporter: Reporter) -> None:
    """Train in a child process, and report its steps and warnings."""
    with tempfile.TemporaryDirectory(prefix="traindeck-base-", ignore_cleanup_errors=True) as folder:
        events = Path(folder, "events.jsonl")
        with events.open("wb") as stdout:
            process = _start(arguments, stdout)
        with process, reporter.on_pause(lambda: _paused(process)), events.open("rb") as file:
            try:
                error = _follow(process, file, reporter)
            except StopRequested:
                _send(process, protocol.Stop())
                process.wait()
                raise
            finally:
                child_process.kill_child(process)
    if error is not None:
        raise TraindeckError(error.code, error.detail, **error.params)
    if process.returncode == ExitCode.STOPPED:  # Ctrl+C reaches both processes
        raise StopRequested
    if process.returncode:
        raise TraindeckError("base_model.not_trained", path=str(run.path), log=str(run.log))


def _start(arguments: list[str], stdout: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, *child_process.interpreter_flags(), "-P", "-m", "trainer_core", "train", *arguments]
    return subprocess.Popen(
        [*command, "--output", "json", "--control", "stdin"],
        stdin=subprocess.PIPE,  # the process saves and ends when it closes
        stdout=stdout,
        stderr=subprocess.DEVNULL,  # also in the log of the run
        env=child_process.environment(**rank_info.SINGLE_PROCESS_ENVIRONMENT),
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )


def _follow(process: subprocess.Popen[bytes], events: IO[bytes], reporter: Reporter) -> protocol.Error | None:
    """Wait for the end. Returns the error that was emitted."""
    error, rest, ended = None, b"", False
    while not ended:
        reporter.poll()
        time.sleep(_POLL_S)
        ended = process.poll() is not None
        *lines, rest = (rest + events.read()).split(b"\n")
        for event in run_dir.decode_events(lines):
            match event:
                case protocol.Progress(phase="training"):
                    reporter.progress("training_base", event.done, event.total, event.unit)
                case protocol.Warn():
                    reporter.warn(event.code, **event.params)
                case protocol.Error():
                    error = event
    return error


@contextlib.contextmanager
def _paused(process: subprocess.Popen[bytes]) -> Iterator[None]:
    _send(process, protocol.Pause())
    try:
        yield
    finally:
        _send(process, protocol.Resume())


def _send(process: subprocess.Popen[bytes], command: protocol.AnyCommand) -> None:
    with contextlib.suppress(OSError):  # the process has ended
        assert process.stdin is not None
        process.stdin.write(protocol.encode(command))
        process.stdin.flush()
