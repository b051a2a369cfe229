"""Trials: a configuration measured in a child process, which is ended before it takes the last memory of the machine.

Requests and results are plain values that the processes exchange and that are cached on disk. No torch, no Qt.
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
from typing import IO, Final, Literal

import msgspec

from trainer_core import error_codes, protocol, rank_info
from trainer_core.config import Config
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
_TIGHT_SHARE: Final = 0.1  # of the device's memory

Verdict = Literal["fits", "tight", "does_not_fit"]


class TrialRequest(msgspec.Struct, frozen=True):
    """A configuration to measure. Its data are synthetic and depend on `vocab_size` and `task` alone."""

    config: Config
    vocab_size: int
    task: Literal["pretrain", "sft"]
    total_steps: int  # of the run: decides what is compiled
    seconds: float = 1.5  # of measured steps, at least


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """Estimate and measurement of a configuration. Bytes; seconds. Of several GPUs, the fullest counts."""

    fits: bool  # all steps succeeded; False: out of memory, measured or estimated
    device: str  # display name
    uuids: list[str] = []  # of the GPUs; empty on a CPU
    memory_total: int  # of the device
    memory_free: int  # of the device, before anything was allocated
    needed: int  # estimated lower bound
    state: int  # part of `needed` for weights, gradients and moments, independent of the batch size
    parameters: int  # trainable
    checkpoint_bytes: int  # of one checkpoint
    precision: str = ""  # of the forward pass
    peak: int | None = None  # of the device's memory used by the process; None: out of memory
    ram_peak: int | None = None  # of the process's resident memory
    tokens_per_s: float | None = None
    step_s: float | None = None  # an optimizer update with all its micro-batches
    start_s: float | None = None  # from the start of the process to the end of its first step
    compile_s: float | None = None  # None: not compiled
    utilization: float | None = None  # 0..1, of the GPU; None: not on a GPU, or not reported
    mfu: float | None = None  # 0..1; None: the peak of the device is unknown


def verdict(result: TrialResult) -> Verdict:
    """Compare the peak with the memory that was free before.

    A larger peak does not fit even if all steps succeeded: on Windows the driver then moves GPU memory to RAM, and
    steps take ten times as long.
    """
    if not result.fits or result.peak is None or result.peak > result.memory_free:
        return "does_not_fit"
    return "tight" if result.memory_free - result.peak < result.memory_total * _TIGHT_SHARE else "fits"


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
        env=child_process.environment(**rank_info.SINGLE_PROCESS_ENVIRONMENT),
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
