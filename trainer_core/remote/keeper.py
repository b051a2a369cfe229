"""Keeps a trainer running on this machine while connections to it come and go.

    RUN/keeper/
        lock            PID of the keeper
        commands.jsonl  {"key", "command"}, appended by connections; the keeper carries out each key once
        output.jsonl    stdout of the trainer, of which events.jsonl has everything since the run was opened
        stderr.txt      its stderr
        ended.json      how it ended

The keeper owns the trainer's stdin, so a lost connection is not a lost parent. It is the trainer's supervisor, so
transient failures do not wait for a connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from trainer_core import protocol, run_plan
from trainer_core.command_reader import CommandReader
from trainer_core.command_runner import CommandContext
from trainer_core.messages import TraindeckError
from trainer_core.runs import file_locks
from trainer_core.runs.run_dir import RunDir
from trainer_core.supervisor import Supervisor
from trainer_core.system import child_process, files

FOLDER: Final = "keeper"
_POLL_S: Final = 0.05
_START_TIMEOUT_S: Final = 60.0  # until the keeper has its lock
_CHUNK_BYTES: Final = 256 * 1024
_TAIL_BYTES: Final = 4000
_OPTIONS: Final = ("--control", "stdin")


class KeeperDir:
    """The paths of one run's keeper."""

    def __init__(self, run: RunDir) -> None:
        self.path = run.path / FOLDER
        self.lock = self.path / "lock"
        self.commands = self.path / "commands.jsonl"
        self.output = self.path / "output.jsonl"
        self.stderr = self.path / "stderr.txt"
        self.ended = self.path / "ended.json"


def is_running(run: RunDir) -> bool:
    """Whether the keeper runs, or a trainer that saves because its keeper was killed."""
    owners = map(file_locks.read_owner, (KeeperDir(run).lock, run.lock))
    return any(owner is not None and owner.alive for owner in owners)


def start(run: RunDir, arguments: Sequence[str]) -> None:
    """Start a keeper that outlives this process. `arguments`: those of `train`. Raises `run.in_use`, `disk.…`."""
    paths = KeeperDir(run)
    if is_running(run):
        raise TraindeckError("run.in_use", path=str(run.path), pid="-")
    with files.translate_os_errors(paths.path):
        paths.path.mkdir(parents=True, exist_ok=True)
        paths.ended.unlink(missing_ok=True)
        paths.commands.write_bytes(b"")
        output, errors = paths.output.open("wb"), paths.stderr.open("wb")
    command = [sys.executable, *child_process.interpreter_flags(), "-m", "trainer_core", "remote", "keep", *arguments]
    with output, errors:
        child = subprocess.Popen(
            [*command, "--output", "json", *_OPTIONS],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=child_process.environment(),
            **_detached(),
        )
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not (is_running(run) or paths.ended.exists()) and child.poll() is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _detached() -> dict[str, Any]:
    """Arguments of `Popen` for a process without a console that outlives this one."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


def keep(flags: Mapping[str, Any], arguments: Sequence[str]) -> int:
    """Train under supervision, controlled by the file of commands. Returns the exit code of the last trainer.

    `flags`: those of `train`, which has the arguments `arguments`; with the run's folder.
    """
    run = RunDir(Path(flags["run_dir"] or flags["resume"]).absolute())
    paths = KeeperDir(run)
    with file_locks.file_lock(paths.lock):
        recorded = _size(run.events)
        code = _supervise(flags, arguments, paths.commands)
        ended = {"exit_code": code, "recorded": _size(run.events) > recorded}
        files.write_atomic(paths.ended, json.dumps(ended).encode())
    return code


def _supervise(flags: Mapping[str, Any], arguments: Sequence[str], commands: Path) -> int:
    try:
        plan = run_plan.plan_run(flags)
    except TraindeckError as error:
        with CommandContext("json") as job:
            raise error
        return job.exit_code
    reading, writing = os.pipe()
    os.dup2(reading, 0)  # inherited by trainers
    supervisor = Supervisor(plan, arguments, "json", _OPTIONS)
    forwarder = _Forwarder(commands, os.fdopen(writing, "wb", buffering=0), supervisor)
    threading.Thread(target=forwarder.run, name="commands", daemon=True).start()
    return supervisor.run()


class _Forwarder:
    """Writes commands to the trainer's stdin. A second Stop kills the trainer."""

    def __init__(self, commands: Path, stdin: BinaryIO, supervisor: Supervisor) -> None:
        self._commands, self._stdin, self._supervisor = commands, stdin, supervisor
        self._done = set[str]()
        self._stops = 0

    def run(self) -> None:
        """Forward commands for ever."""
        with self._commands.open("rb") as file:
            pending = b""
            while True:
                *lines, pending = (pending + file.read()).split(b"\n")
                for line in lines:
                    with contextlib.suppress(ValueError, KeyError, TypeError):  # not from us
                        self._forward(json.loads(line))
                time.sleep(_POLL_S)

    def _forward(self, entry: dict[str, Any]) -> None:
        if entry["key"] in self._done:  # repeated after a lost connection
            return
        self._done.add(entry["key"])
        command = entry["command"]
        if command["command"] == protocol.Stop.__struct_config__.tag:
            self._stops += 1
            self._supervisor.prevent_restarts()
            if self._stops > 1:
                self._supervisor.kill()
        self._stdin.write(json.dumps(command).encode() + b"\n")


def follow(run: RunDir, after: int, out: BinaryIO, stdin: CommandReader | None) -> dict[str, Any] | None:
    """Copy events.jsonl from byte `after` to `out`, and lines of `stdin` to the keeper, until the trainer has ended.

    `stdin`: None: return at once if it has not. Returns what `describe_end` returns; None: `stdin` has ended.
    """
    paths = KeeperDir(run)
    while True:
        running = is_running(run)  # read first: what the trainer wrote before its end is copied below
        if stdin is not None and (lines := stdin.poll_lines()):
            with paths.commands.open("ab", buffering=0) as file:
                file.write(b"\n".join([*lines, b""]))
        after = _copy(run.events, after, out)
        if not running or stdin is None:
            return describe_end(run, running=running)
        if stdin.closed:
            return None
        time.sleep(_POLL_S)


def describe_end(run: RunDir, *, running: bool) -> dict[str, Any]:
    """How the trainer ended.

    running: It has not.
    exit_code: Negative: a signal. None: unknown, since the keeper was killed.
    unrecorded: Events of a trainer that ended before it opened its run.
    stderr: Last output of the trainer.
    """
    paths = KeeperDir(run)
    ended: dict[str, Any] = {}
    if not running and paths.ended.is_file():
        ended = json.loads(paths.ended.read_bytes())
    lost = not running and not ended.get("recorded", True)
    return {
        "running": running,
        "exit_code": ended.get("exit_code"),
        "unrecorded": _tail(paths.output).splitlines() if lost else [],
        "stderr": "" if running else _tail(paths.stderr),
    }


def _copy(events: Path, after: int, out: BinaryIO) -> int:
    """Copy what was appended. Returns the new size."""
    try:
        with events.open("rb") as file:
            file.seek(after)
            while chunk := file.read(_CHUNK_BYTES):
                out.write(chunk)
                after += len(chunk)
    except FileNotFoundError:
        pass
    out.flush()
    return after


def _tail(path: Path) -> str:
    """The last characters of a file."""
    try:
        return path.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
