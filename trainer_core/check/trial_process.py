"""Trials: a configuration measured in a child process, which is ended before it takes the last memory of the machine.

Requests and results are plain values that the processes exchange and that are cached on disk. No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, Literal

import msgspec

from trainer_core import error_codes, protocol, rank_info
from trainer_core.config import Config
from trainer_core.data.column_mapping import Task
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import StopRequested
from trainer_core.run_context import RunContext
from trainer_core.system import child_process
from trainer_core.system.memory import system_memory

_POLL_S: Final = 0.03
_RESERVED_SHARE: Final = 0.04  # of the machine's memory, at least
_RESERVED_BYTES: Final = 256 * 2**20  # at least
_MAX_RESERVED_SHARE: Final = 0.1  # for small containers
_MAX_STDERR: Final = 4000  # characters
_PHASES: Final = ("compiling", "checking")
_TIGHT_SHARE: Final = 0.1  # of the device's memory

Verdict = Literal["fits", "tight", "does_not_fit"]


class TrialRequest(msgspec.Struct, frozen=True):
    """A configuration to measure. Its data are synthetic and depend on `vocab_size`, `task` and `sides` alone."""

    config: Config
    vocab_size: int
    task: Task
    total_steps: int  # of the run: decides what is compiled
    seconds: float = 1.5  # of measured steps, at least
    sides: int = 0  # see `PreparedData.sides`


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """Estimate and measurement of a configuration. Bytes; seconds. Of several GPUs, the fullest counts."""

    fits: bool  # all steps succeeded; False: out of memory, measured or estimated
    device: str  # display name
    uuids: list[str] = []  # of the GPUs; empty on a CPU
    memory_total: int  # of the device
    memory_free: int  # of the device, before anything was allocated
    needed: int  # at least: weights, gradients and moments
    parameters: int  # trainable
    checkpoint_bytes: int  # of one checkpoint
    precision: str = ""  # of the forward pass
    peak: int | None = None  # of the device's memory used by the process; None: out of memory
    ram_peak: int | None = None  # of the process's resident memory
    tokens_per_s: float | None = None
    step_s: float | None = None  # an optimizer update with all its micro-batches
    compile_s: float | None = None  # None: not compiled
    utilization: float | None = None  # 0..1, of the GPU; None: not on a GPU, or not reported

    @property
    def verdict(self) -> Verdict:
        """Compare the peak with the memory that was free before.

        A larger peak does not fit even if all steps succeeded: on Windows the driver then moves GPU memory to RAM, and
        steps take ten times as long.
        """
        if not self.fits or self.peak is None or self.peak > self.memory_free:
            return "does_not_fit"
        return "tight" if self.memory_free - self.peak < self.memory_total * _TIGHT_SHARE else "fits"


def run_trial_process(request: TrialRequest, context: RunContext) -> TrialResult:
    """Run the steps of a request; forward phases and warnings to `context`.

    Out of memory is a result. Raises other errors of training, `check.failed` for a crash, and `StopRequested`.
    """
    with tempfile.TemporaryDirectory(prefix="traindeck-check-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        events, errors = folder / "events.jsonl", folder / "stderr.txt"
        (folder / "request.json").write_bytes(msgspec.json.encode(request))
        with (
            events.open("wb") as stdout,
            errors.open("wb") as stderr,
            subprocess.Popen(
                rank_info.launch_command("trainer_core.check.trial", [str(folder)], request.config.nproc_per_node),
                stdin=subprocess.PIPE,  # the process ends when it closes
                stdout=stdout,
                stderr=stderr,
                env=child_process.environment(**rank_info.SINGLE_PROCESS_ENVIRONMENT),
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            ) as process,
        ):
            try:
                starved, error = _follow(process, events, context)
            finally:
                child_process.kill_child(process)
        detail = errors.read_text("utf-8", "replace").strip()[-_MAX_STDERR:]
        result = None
        with contextlib.suppress(OSError, msgspec.DecodeError):
            result = msgspec.json.decode((folder / "outcome.json").read_bytes(), type=TrialResult)
    if result is not None and (starved or not process.returncode or _is_out_of_memory(process.returncode, detail)):
        return result
    if error is not None:
        sys.stderr.write(detail)
        raise TraindeckError(error.code, error.detail, **error.params)
    if process.returncode == ExitCode.STOPPED:  # Ctrl+C reaches both processes
        raise StopRequested
    reason = detail.splitlines()[-1] if detail else f"exit code {process.returncode & 0xFFFFFFFF:#x}"
    raise TraindeckError("check.failed", detail=detail, reason=reason)


def _follow(process: subprocess.Popen[bytes], events: Path, context: RunContext) -> tuple[bool, protocol.Error | None]:
    """Wait for the end. Returns whether the machine ran out of memory before it, and the error that was emitted."""
    total = system_memory().total
    reserved = min(max(_RESERVED_BYTES, total * _RESERVED_SHARE), total * _MAX_RESERVED_SHARE)
    error, rest = None, b""
    with events.open("rb") as file:
        while True:
            context.poll()
            if system_memory().available < reserved:
                return True, error
            ended = process.poll() is not None
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in lines:
                with contextlib.suppress(protocol.ProtocolError):
                    event = protocol.decode_event(line)
                    if isinstance(event, protocol.Phase) and event.phase in _PHASES:
                        context.set_phase(event.phase)
                    elif isinstance(event, protocol.Warn):
                        context.warn(event.code, **event.params)
                    elif isinstance(event, protocol.Error):
                        error = event
            if ended:
                return False, error
            time.sleep(_POLL_S)


def _is_out_of_memory(exit_code: int, stderr: str) -> bool:
    if exit_code == ExitCode.OUT_OF_MEMORY or child_process.is_out_of_memory(exit_code):
        return True
    found = error_codes.classify_exception(stderr)
    return found is not None and found.code == "memory.out"
