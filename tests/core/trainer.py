"""Runs the real trainer as a child process, and reads what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer_core import protocol

ROOT = Path(__file__).resolve().parents[2]

# fmt: off
TINY = (
    "--hidden-dim", "32",
    "--n-layers", "2",
    "--n-heads", "2",
    "--max-seq-len", "32",
    "--vocab-size", "320",
    "--batch-size", "4",
    "--gradient-accumulation-steps", "3",
    "--dropout", "0.1",
    "--warmup-steps", "2",
    "--learning-rate", "3e-3",
    "--log-steps", "1",
    "--eval-steps", "5",
    "--eval-batches", "2",
    "--sample-steps", "7",
    "--sample-tokens", "8",
    "--cpu-threads", "1",
    "--device", "cpu",
    "--restarts", "0",  # one process less; tests/faults/test_restarts.py has them
)
# fmt: on


def text_file(folder: Path, lines: int = 400) -> Path:
    """A small text with something to learn in it, Chinese included."""
    path = folder / "文本 text.txt"
    sentences = (f"Line {n}: {n} plus {n + 1} is {2 * n + 1}. 第{n}行。\n" for n in range(lines))
    path.write_text("".join(sentences), encoding="utf-8")
    return path


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "TRAINDECK_HOME": str(home), "TRAINDECK_LANG": "en", "PYTHONPATH": str(ROOT)}


def start(home: Path, *arguments: str, stdin: int | None = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start a trainer that writes JSON events to stdout.

    The pipes are unbuffered: `communicate` would lose what a buffered reader has read ahead after `read_until`.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "trainer_core", *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
        cwd=home,
        bufsize=0,
    )


@dataclass(frozen=True)
class Ended:
    """Exit code, events and stderr of a finished trainer."""

    code: int
    events: list[protocol.AnyEvent]
    stderr: str

    def of(self, kind: type) -> list:  # type: ignore[type-arg]
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def losses(self) -> dict[int, float]:
        return {event.step: event.loss for event in self.of(protocol.Step)}

    @property
    def error(self) -> protocol.Error:
        (error,) = self.of(protocol.Error)
        return error  # type: ignore[no-any-return]


def read_until(
    process: subprocess.Popen[bytes], last: Callable[[protocol.AnyEvent], bool] = lambda event: False
) -> list[protocol.AnyEvent]:
    """Read events up to the first for which `last` is true, or to the end of the output."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(protocol.decode_event(line))
        if last(seen[-1]):
            break
    return seen


def finish(process: subprocess.Popen[bytes], timeout: float = 90) -> Ended:
    out, err = process.communicate(timeout=timeout)
    return Ended(process.returncode, [protocol.decode_event(line) for line in out.splitlines()], err.decode("utf-8"))


def run(home: Path, *arguments: str) -> Ended:
    return finish(start(home, *arguments))
