"""Reports a run to Weights & Biases, from a process of its own (wandb_child.py).

wandb asks for log-ins, waits for networks, patches streams and may hold a process at its exit. None of
that may touch training, so all that happens here is: put an event into a bounded queue. A thread feeds
the child; when it cannot keep up, the oldest measurements are dropped. `WANDB_MODE` and wandb's other
environment variables work as usual. No torch, no Qt, and no wandb in this process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import secrets
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trainer_core import children, files, protocol
from trainer_core.config import Config, to_dict
from trainer_core.messages import TraindeckError

REPORTED: Final = (protocol.Step, protocol.Eval, protocol.Hardware, protocol.Sample, protocol.Done)
_QUEUE_LENGTH: Final = 2000
_FINISH_SECONDS: Final = 15.0  # how long the upload may keep us at the end; it goes on without us


def _log_problem(error: TraindeckError) -> None:
    logging.getLogger(__name__).warning("%s", error)


class WandbSink:
    """A sink of the wire (see wire.py). Raises `wandb.unavailable` if wandb is not installed.

    What goes wrong later (not logged in, no network) is told to `on_problem`, at most once, from a
    thread; `problem` keeps it. Training never waits for any of it.
    """

    def __init__(
        self, config: Config, run_path: Path, on_problem: Callable[[TraindeckError], None] = _log_problem
    ) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise _unavailable("No module named 'wandb'")
        self.problem: TraindeckError | None = None
        self._on_problem = on_problem
        self._queue: deque[bytes] = deque(maxlen=_QUEUE_LENGTH)
        self._changed, self._closing = threading.Condition(), False
        about = {
            "project": config.wandb_project,
            "id": _run_id(run_path),
            "name": run_path.name,
            "folder": str(run_path),
            "config": to_dict(config),
        }
        self._queue.append(json.dumps(about).encode("ascii") + b"\n")
        self._child = _start_child()
        self._threads = [threading.Thread(target=run, name="wandb", daemon=True) for run in (self._feed, self._listen)]
        for thread in self._threads:
            thread.start()

    def write(self, event: protocol.AnyEvent) -> None:
        """Queue an event; never waits, never raises."""
        if isinstance(event, REPORTED) and self.problem is None:
            with self._changed:
                self._queue.append(protocol.encode(event))
                self._changed.notify()

    def close(self) -> None:
        """End the run there. Waits a little for the upload, which otherwise goes on after this process."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_FINISH_SECONDS)
            for thread in self._threads:
                thread.join(1.0)

    def _feed(self) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # the child is gone: `_listen` tells why
            while line := self._next():
                self._child.stdin.write(line)
                self._child.stdin.flush()
        with contextlib.suppress(OSError):
            self._child.stdin.close()

    def _next(self) -> bytes:
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            return self._queue.popleft() if self._queue else b""

    def _listen(self) -> None:
        """The child says a line of JSON when something is wrong, and ends with 0 when all was well."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._tell(str(json.loads(line)["problem"]))
        code = self._child.wait()
        if code != 0:
            self._tell(f"exit code {code & 0xFFFFFFFF:#x}")

    def _tell(self, reason: str) -> None:
        if self.problem is None:
            self.problem = _unavailable(reason)
            with contextlib.suppress(Exception):  # whoever listens may be gone already
                self._on_problem(self.problem)


def _unavailable(reason: str) -> TraindeckError:
    return TraindeckError("wandb.unavailable", reason=reason.rstrip("."))


def _run_id(run_path: Path) -> str:
    """Kept in the run's folder, so that a resumed run goes on in the same place there."""
    path = run_path / "wandb-id.txt"
    with contextlib.suppress(OSError):
        known = path.read_text(encoding="ascii", errors="ignore").strip()
        if known.isalnum():
            return known
    made = secrets.token_hex(6)
    with contextlib.suppress(OSError):
        files.write_atomic(path, made.encode("ascii"))
    return made


def _start_child() -> subprocess.Popen[bytes]:
    quiet = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_DISABLE_GIT": "true", "WANDB_DISABLE_CODE": "true"}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "trainer_core.wandb_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**quiet, **children.environment(PYTHONUTF8="1")},
        # Apart from our terminal and group: Ctrl+C is not for it, and it has no terminal to ask for a log-in on.
        start_new_session=os.name != "nt",
        creationflags=_windows_flags(),
    )


def _windows_flags() -> int:
    return getattr(subprocess, "CREATE_NO_WINDOW", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
