"""A trial's process, from outside: started, listened to, and ended before it takes the last of the machine's memory.

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

from trainer_core import children, failures, place, protocol
from trainer_core.checking.outcome import Outcome, Request
from trainer_core.machine.ram import system_memory
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.report import StopRequested
from trainer_core.session import Session

_LOOK_S: Final = 0.03  # between two looks at the machine's memory
_FLOOR_SHARE: Final = 25  # this part of the machine's memory is never taken,
_FLOOR_BYTES: Final = 256 * 2**20  # nor so much,
_SMALL_SHARE: Final = 10  # but of a small container no more than this part is spared
_LEAVING_S: Final = 30.0  # that an interpreter may take to end
_TOLD: Final = 4000  # characters of what a process said when it broke
_PHASES: Final = ("compiling", "checking")
_KILLED: Final = -9
_NO_MEMORY: Final = (0xC0000017, 0xC000012D)  # Windows: no memory; the page file is full


def run(request: Request, session: Session) -> Outcome:
    """Run the steps of a request. What it says of compiling and warns of is passed on.

    Raises `check.failed` and what the trainer would raise (but not for want of memory: that is an outcome), and
    `StopRequested` with the process ended.
    """
    with tempfile.TemporaryDirectory(prefix="traindeck-check-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "request.json").write_bytes(msgspec.json.encode(request))
        with (folder / "stderr.txt").open("w+b") as told, _started(folder, told) as (process, lines):
            starved, error = _follow(process, lines, session)
            said = _end_of(told)
        try:
            outcome = msgspec.json.decode((folder / "outcome.json").read_bytes(), type=Outcome)
        except (OSError, msgspec.DecodeError):
            outcome = None
    if outcome is not None and (starved or not process.returncode or _for_want_of_memory(process.returncode, said)):
        return outcome
    if error is not None:
        sys.stderr.write(said)  # a traceback, if there is one
        raise TraindeckError(error.code, error.detail, **error.params)
    if process.returncode == ExitCode.STOPPED:  # Ctrl+C is heard by both
        raise StopRequested
    reason = said.splitlines()[-1] if said else f"exit code {process.returncode & 0xFFFFFFFF:#x}"
    raise TraindeckError("check.failed", detail=said, reason=reason)


@contextlib.contextmanager
def _started(folder: Path, told: IO[bytes]) -> Iterator[tuple[subprocess.Popen[bytes], queue.SimpleQueue[bytes]]]:
    """The process, and the lines it says. Its stdin stays open: when it closes, the process ends by itself."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "trainer_core.checking.trial", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=told,
        env=children.environment(**place.NONE),
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )
    assert process.stdout is not None
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        yield process, lines
    finally:
        children.end(process)
        reader.join()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _read(stream: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(b"")


def _follow(
    process: subprocess.Popen[bytes], lines: queue.SimpleQueue[bytes], session: Session
) -> tuple[bool, protocol.Error | None]:
    """Until it has ended: whether it was ended because the machine ran out of memory, and the error that it told."""
    total = system_memory().total
    floor = min(max(_FLOOR_BYTES, total // _FLOOR_SHARE), total // _SMALL_SHARE)
    error = None
    line: bytes | None = None
    while line != b"":
        session.poll()
        if system_memory().available < floor:
            return True, error
        try:
            line = lines.get(timeout=_LOOK_S)
            event = protocol.decode_event(line)
        except (queue.Empty, protocol.ProtocolError):
            continue
        if isinstance(event, protocol.Phase) and event.phase in _PHASES:
            session.enter(event.phase)
        elif isinstance(event, protocol.Warn):
            session.warn(event.code, **event.params)
        elif isinstance(event, protocol.Error):
            error = event
    process.wait(_LEAVING_S)
    return False, error


def _for_want_of_memory(code: int, said: str) -> bool:
    """Whether a process that left with this code had no memory left, by itself or by the system's hand."""
    if code in (ExitCode.OUT_OF_MEMORY, _KILLED) or code & 0xFFFFFFFF in _NO_MEMORY:
        return True
    found = failures.of_exception(said)
    return found is not None and found.code == "memory.out"


def _end_of(told: IO[bytes]) -> str:
    told.seek(0)
    return told.read().decode("utf-8", "replace").strip()[-_TOLD:]
