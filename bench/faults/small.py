"""A minimal run for fault injection, saved every second step, and the checks of its state."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import measure, runs
from trainer_core import protocol
from trainer_core.runs import checkpoint_dir

SAVE_STEPS: Final = 2
COMPARED: Final = ("model.safetensors", "optimizer.safetensors", "tokenizer.json", "config.json")
_TIMEOUT_S: Final = 300.0  # for a process of some seconds, on a busy machine
_MAX_STDERR: Final = 2000  # characters in a failure

KNOBS: Final[Mapping[str, Any]] = {
    "hidden-dim": 32, "n-layers": 1, "n-heads": 1, "max-seq-len": 32, "vocab-size": 320, "batch-size": 2,
    "dropout": 0.1, "warmup-steps": 2, "learning-rate": 3e-3, "save-steps": SAVE_STEPS, "keep-last": 2,
    "log-steps": 1, "eval-steps": 5, "eval-batches": 4, "sample-steps": 0, "sample-tokens": 1, "perf-steps": 0,
    "cpu-threads": 1, "device": "cpu", "compile": "off", "attention": "math", "chunked-loss": "off", "num-workers": 0,
    "restarts": 0,
}  # fmt: skip


def text_file(folder: Path, lines: int = 2000) -> Path:
    """A small text, Chinese included."""
    path = folder / "文本 text.txt"
    sentences = (f"Line {n}: {n} plus {n + 1} is {2 * n + 1}. 第{n}行。\n" for n in range(lines))
    path.write_text("".join(sentences), encoding="utf-8")
    return path


def arguments(data: Path, run: Path, steps: int, more: Mapping[str, Any] | None = None) -> list[str]:
    """Arguments of `train`, or of a resume if the run exists."""
    if (run / "config.yaml").is_file():
        return ["train", "--resume", str(run), "--output", "json"]
    settings = {**KNOBS, "max-steps": steps, **(more or {})}
    return ["train", *runs.flags(settings), "--data", str(data), "--run-dir", str(run), "--output", "json"]


class Child:
    """A trainer process. A thread reads its events."""

    def __init__(self, command: Sequence[str], home: Path, stdin: int = subprocess.DEVNULL) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.events: list[protocol.AnyEvent] = []
        self._reading = True
        self._changed, self._stderr = threading.Condition(), tempfile.TemporaryFile()  # noqa: SIM115 - closed by `ended`
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"TRAINDECK_HOME": str(home), "TRAINDECK_LANG": "en", "PYTHONPATH": str(measure.ROOT)}
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            list(command), stdin=stdin, stdout=subprocess.PIPE, stderr=self._stderr, env=environment, cwd=home
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # the last one of a killed process may be half a line
                with self._changed:
                    self.events.append(protocol.decode_event(line))
                    self._changed.notify_all()
        with self._changed:
            self._reading = False
            self._changed.notify_all()

    def wait_until(self, seen: Callable[[Sequence[protocol.AnyEvent]], bool]) -> bool:
        """Wait until `seen` is true of its events; False: it ended before."""
        with self._changed:
            return self._changed.wait_for(lambda: seen(self.events) or not self.alive, _TIMEOUT_S) and seen(self.events)

    def wait_for(self, kind: type, count: int = 1) -> bool:
        """Wait for `count` events of a kind; False: it ended before."""
        return self.wait_until(lambda events: len(self.of(kind)) >= count)

    @property
    def alive(self) -> bool:
        """Whether further events may arrive."""
        return self._reading

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        code = self.process.wait(_TIMEOUT_S)
        self._reader.join(_TIMEOUT_S)
        return code

    def kill(self) -> None:
        """SIGKILL, or TerminateProcess on Windows."""
        self.process.kill()
        self.ended()

    def stderr(self) -> str:
        """Its stderr, after its end."""
        self._stderr.seek(0)
        return self._stderr.read().decode("utf-8", "replace")

    def stderr_line(self, beginning: str) -> str:
        """The first line of stderr with this beginning; empty: none."""
        return next((line for line in self.stderr().splitlines() if line.startswith(beginning)), "")

    def last_words(self) -> str:
        """Exit code, last event and the end of stderr."""
        words = self.stderr()[-_MAX_STDERR:]
        return f"exit code {self.process.returncode}; {self.events[-1:]}; {words}"


@dataclass(frozen=True, slots=True)
class Unbroken:
    """The run without faults, which every other one must equal."""

    data: Path
    run: Path
    steps: int
    losses: Mapping[int, float | None]
    seconds: float  # of its process

    @property
    def last(self) -> Path:
        return self.run / "checkpoints" / checkpoint_dir.folder_name(self.steps)

    def command(self, run: Path, more: Mapping[str, Any] | None = None) -> list[str]:
        """Command of the same run in another folder, begun or resumed."""
        return measure.trainer(*arguments(self.data, run, self.steps, more))

    def differences(self, run: Path) -> list[str]:
        """Files of another run's last checkpoint that differ."""
        last = run / "checkpoints" / self.last.name
        return [
            f"{name} is not that of the unbroken run"
            for name in COMPARED
            if not (last / name).is_file() or (last / name).read_bytes() != (self.last / name).read_bytes()
        ]

    def wrong_losses(self, events: Sequence[protocol.AnyEvent]) -> list[str]:
        """Steps whose loss differs from that of the unbroken run."""
        steps = [event for event in events if isinstance(event, protocol.Step)]
        return [f"the loss of step {one.step} differs" for one in steps if one.loss != self.losses.get(one.step)]


def unbroken(folder: Path, steps: int, more: Mapping[str, Any] | None = None) -> Unbroken:
    """Write the data and train without faults. Raises `RuntimeError` if that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    data, run = text_file(folder), folder / "unbroken"
    child = Child(measure.trainer(*arguments(data, run, steps, more)), folder)
    if child.ended() != 0:
        raise RuntimeError(child.last_words())
    losses = {event.step: event.loss for event in child.of(protocol.Step)}
    return Unbroken(data, run, steps, losses, time.monotonic() - child.began)


def newest(run: Path) -> tuple[int, list[str]]:
    """Step of the newest valid checkpoint (0: none), and problems of others."""
    found, wrong = 0, []
    for folder in checkpoint_dir.list_checkpoints(run / "checkpoints"):
        reason = checkpoint_dir.find_problem(folder)
        if reason is None:
            found = int(folder.name.removeprefix("step-"))
        else:
            wrong.append(f"{folder.name}: {reason}")
    return found, wrong
