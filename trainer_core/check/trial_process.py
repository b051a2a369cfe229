"""Runs a trial in a child process and ends it before it takes the last memory of the machine.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from trainer_core import error_codes, place, protocol
from trainer_core.check.trial_result import TrialRequest, TrialResult
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import StopRequested
from trainer_core.run_context import RunContext
from trainer_core.system import child_process
from trainer_core.system.memory import system_memory

_POLL_S: Final = 0.03
_RESERVED_SHARE: Final = 0.04  # of the machine's memory, at least
_RESERVED_BYTES: Final = 256 * 2**20  # at least
_MAX_RESERVED_SHARE: Final = 0.1  # for small containers
_EXIT_TIMEOUT_S: Final = 30.0
_MAX_STDERR: Final = 4000  # characters
_PHASES: Final = ("compiling", "checking")


def run_trial_process(request: TrialRequest, session: RunContext) -> TrialResult:
    """Run the steps of a request; forward phases and warnings to `session`.

    Out of memory is a result. Raises other errors of training, `check.failed` for a crash, and `StopRequested`.
    """
    with tempfile.TemporaryDirectory(prefix="traindeck-check-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "request.json").write_bytes(msgspec.json.encode(request))
        with (folder / "stderr.txt").open("w+b") as log, _start(folder, log) as (process, lines):
            starved, error = _follow(process, lines, session)
            log.seek(0)
            stderr = log.read().decode("utf-8", "replace").strip()[-_MAX_STDERR:]
        result = None
        with contextlib.suppress(OSError, msgspec.DecodeError):
            result = msgspec.json.decode((folder / "outcome.json").read_bytes(), type=TrialResult)
    if result is not None and (starved or not process.returncode or _is_out_of_memory(process.returncode, stderr)):
        return result
    if error is not None:
        sys.stderr.write(stderr)
        raise TraindeckError(error.code, error.detail, **error.params)
    if process.returncode == ExitCode.STOPPED:  # Ctrl+C reaches both processes
        raise StopRequested
    reason = stderr.splitlines()[-1] if stderr else f"exit code {process.returncode & 0xFFFFFFFF:#x}"
    raise TraindeckError("check.failed", detail=stderr, reason=reason)


@contextlib.contextmanager
def _start(folder: Path, log: IO[bytes]) -> Iterator[tuple[subprocess.Popen[bytes], queue.SimpleQueue[bytes]]]:
    """The process, and its stdout by line; an empty line is the end. The process ends when its stdin closes."""
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "trainer_core.check.trial", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=child_process.environment(**place.NONE),
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    ) as process:
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        try:
            yield process, lines
        finally:
            child_process.kill_tree(process)
            reader.join()


def _read(stream: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(b"")


def _follow(
    process: subprocess.Popen[bytes], lines: queue.SimpleQueue[bytes], session: RunContext
) -> tuple[bool, protocol.Error | None]:
    """Wait for the end. Returns whether the machine ran out of memory before it, and the error that was emitted."""
    total = system_memory().total
    reserved = min(max(_RESERVED_BYTES, total * _RESERVED_SHARE), total * _MAX_RESERVED_SHARE)
    error = None
    line: bytes | None = None
    while line != b"":
        session.poll()
        if system_memory().available < reserved:
            return True, error
        try:
            line = lines.get(timeout=_POLL_S)
            event = protocol.decode_event(line)
        except (queue.Empty, protocol.ProtocolError):
            continue
        if isinstance(event, protocol.Phase) and event.phase in _PHASES:
            session.set_phase(event.phase)
        elif isinstance(event, protocol.Warn):
            session.warn(event.code, **event.params)
        elif isinstance(event, protocol.Error):
            error = event
    process.wait(_EXIT_TIMEOUT_S)
    return False, error


def _is_out_of_memory(exit_code: int, stderr: str) -> bool:
    if exit_code == ExitCode.OUT_OF_MEMORY or child_process.is_out_of_memory(exit_code):
        return True
    found = error_codes.classify_exception(stderr)
    return found is not None and found.code == "memory.out"
