"""The real trainer as a child process."""

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
    "--restarts", "0",  # no supervisor process; tests/faults/test_restarts.py tests it
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
class TrainerResult:
    """Exit code, events and stderr of a finished trainer."""

    code: int
    events: list[protocol.AnyEvent]
    stderr: str

    def events_of(self, kind: type) -> list:  # type: ignore[type-arg]
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def losses(self) -> dict[int, float]:
        return {event.step: event.loss for event in self.events_of(protocol.Step)}

    @property
    def error(self) -> protocol.Error:
        (error,) = self.events_of(protocol.Error)
        return error  # type: ignore[no-any-return]


def reached_step(step: int) -> Callable[[protocol.AnyEvent], bool]:
    """Condition for `read_until`: the event of this step or a later one."""
    return lambda event: isinstance(event, protocol.Step) and event.step >= step


def entered_phase(name: str) -> Callable[[protocol.AnyEvent], bool]:
    """Condition for `read_until`: the beginning of a phase."""
    return lambda event: isinstance(event, protocol.Phase) and event.phase == name


def read_until(
    process: subprocess.Popen[bytes], last: Callable[[protocol.AnyEvent], bool] = lambda event: False
) -> list[protocol.AnyEvent]:
    """Read events up to the first for which `last` is true, or to the end of the output."""
    assert process.stdout is not None
    events = []
    for line in process.stdout:
        events.append(protocol.decode_event(line))
        if last(events[-1]):
            break
    return events


def send(process: subprocess.Popen[bytes], *commands: protocol.AnyCommand) -> None:
    """Write commands to the stdin of a trainer started with `--control stdin`."""
    assert process.stdin is not None
    process.stdin.write(b"".join(map(protocol.encode, commands)))
    process.stdin.flush()


def finish(process: subprocess.Popen[bytes], timeout: float = 170) -> TrainerResult:
    out, err = process.communicate(timeout=timeout)
    return TrainerResult(
        process.returncode, [protocol.decode_event(line) for line in out.splitlines()], err.decode("utf-8")
    )


def run(home: Path, *arguments: str) -> TrainerResult:
    return finish(start(home, *arguments))
