"""Training processes: Traindeck's real command and the peers.

All print one JSON object per line with a timestamp: `ready`, `step`, `eval`, `done`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench import measure
from bench.corpus import Corpus

_MAX_OUTPUT: Final = 2000  # characters of a failed command
_PARTS: Final = 5  # of the measured steps, whose median counts
_STOPPED: Final = 3  # exit code of a trainer that was asked to stop
_QUIET: Final = {
    "eval-steps": 0, "eval-batches": 1, "save-steps": 0, "sample-steps": 0, "keep-best": 0, "sample-tokens": 1,
    "warmup-steps": 100, "gradient-accumulation-steps": 1, "output": "json",
}  # fmt: skip

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the model, batch and precision, the same for all."""

    layers: int
    width: int
    heads: int
    length: int
    batch: int
    vocab_size: int
    mlp: int  # of Llama models: Traindeck and the Hugging Face Trainer
    accumulation: int = 1
    device: str = "cpu"
    precision: str = "fp32"

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.batch * self.length * self.accumulation

    def describe(self) -> str:
        return (
            f"{self.layers} layers, {self.width} wide, {self.length} tokens, batch {self.batch} x {self.accumulation}, "
            f"vocabulary {self.vocab_size:,}, {self.precision} on {self.device}"
        )


SHAPES: Final = {
    "small": Shape(layers=4, width=128, heads=4, length=64, batch=12, vocab_size=512, mlp=384),
    "quickstart": Shape(layers=4, width=128, heads=2, length=128, batch=16, vocab_size=2048, mlp=384),
    "gpt2_124m": Shape(12, 768, 12, 1024, 12, 50304, 2048, accumulation=4, device="cuda", precision="bf16"),
    "1b": Shape(20, 2048, 32, 1024, 8, 50304, 5504, accumulation=2, device="cuda", precision="bf16"),
    "tiny": Shape(layers=1, width=32, heads=1, length=32, batch=4, vocab_size=512, mlp=64),  # to try the benchmark
}


@dataclass(slots=True)
class Trained:
    """Events of a training process, and its start in seconds since the epoch."""

    began: float
    events: list[Event] = field(default_factory=list)

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]

    def first(self, kind: str) -> Event:
        return next((event for event in self.events if event["type"] == kind), {})

    def step_ms(self, warm: int) -> float:
        """Wall time of a step in milliseconds: the median over parts of the run after the first `warm` steps.

        Parts instead of single reports, because on a GPU reports are late and may arrive in pairs.
        """
        warm = max(warm, self.first("compiled").get("step", 0) + 2)
        steps = [event for event in self.of("step") if event["step"] >= warm]
        if len(steps) < 2:
            raise RuntimeError(f"only {len(steps)} reports after step {warm}")
        parts = min(_PARTS, len(steps) - 1)
        ends = [steps[number * (len(steps) - 1) // parts] for number in range(parts + 1)]
        times = [(later["t"] - sooner["t"]) / (later["step"] - sooner["step"]) for sooner, later in pairwise(ends)]
        return float(statistics.median(times)) * 1000

    @property
    def to_first_step(self) -> float:
        """Seconds from the start of the process to its first report, with imports and compilation."""
        return float(self.of("step")[0]["t"] - self.began)

    @property
    def peak_vram(self) -> int | None:
        """Peak of the memory that torch's allocator reserved."""
        peak = self.first("done").get("peak_vram")
        return None if peak is None else int(peak)

    @property
    def parameters(self) -> int:
        return int(self.first("ready")["parameters"])


def train(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    stop_when: Callable[[Event], bool] | None = None,
    limit_s: float | None = None,
) -> Trained:
    """Run a training command to its end, or stop Traindeck at an event for which `stop_when` is true.

    It sees one GPU at most. Raises `RuntimeError` if it fails or takes more than `limit_s`.
    """
    with tempfile.TemporaryFile() as stderr:
        trained = Trained(time.time())
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=measure.ROOT,
            env={**measure.environment(), **_shared_environment(), **(env or {})},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stopping = False
        with _killed_after(process, limit_s):
            for line in process.stdout:
                event = json.loads(line)
                trained.events.append(event)
                if stop_when is not None and not stopping and stop_when(event):
                    stopping = True
                    process.stdin.write(b'{"command":"stop"}\n')
                    process.stdin.flush()
            process.stdin.close()
            process.wait()
        if process.returncode not in (0, _STOPPED):
            stderr.seek(0)
            words = stderr.read().decode("utf-8", "replace")[-_MAX_OUTPUT:]
            error = trained.first("error")
            why = f"{error['code']} {error['params']} {error['detail']}" if error else words.strip().rpartition("\n")[2]
            raise RuntimeError(f"{why} (exit code {process.returncode})\n{' '.join(command)}\n{words}")
    return trained


@contextmanager
def _killed_after(process: subprocess.Popen[bytes], limit_s: float | None) -> Iterator[None]:
    """Kill a process that takes longer; then raises `RuntimeError`."""
    late = threading.Event()

    def kill() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(limit_s or 0.0, kill)
    if limit_s is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if late.is_set():
        raise RuntimeError(f"took more than {limit_s:.0f} s")


def _shared_environment() -> dict[str, str]:
    """Environment of all training processes: one GPU, because the Hugging Face Trainer would use all GPUs with a batch
    each, and its steps would have more tokens than are counted."""
    return {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": first_gpu()}


def first_gpu() -> str:
    """Value of CUDA_VISIBLE_DEVICES for the first GPU that a program may use; none remains none."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()


def ours(
    shape: Shape,
    corpus: Corpus,
    run: Path,
    steps: int | None,
    log_steps: int,
    more: Mapping[str, Any] | None = None,
    *,
    sooner: str = "",
    limit_s: float | None = None,
) -> Trained:
    """Run Traindeck's real command, stopped after `steps` of a long run (a short one would not be compiled), or with
    None to its end; in either case stopped at the first event of the type `sooner`. Removes the run folder.
    `more`: knobs that override the others."""
    settings: dict[str, Any] = {**_QUIET, **size(shape), "log-steps": log_steps}
    settings |= {"max-steps": max(20_000, 100 * steps)} if steps else {}
    settings |= more or {}
    measure.remove(run)
    command = measure.trainer("train", *corpus.flags, *flags(settings), "--run-dir", str(run), "--control", "stdin")

    def is_last(event: Event) -> bool:
        done: bool = steps is not None and event["type"] == "step" and event["step"] >= steps
        return done or bool(event["type"] == sooner)

    try:
        return train(command, corpus.home, is_last, limit_s)
    finally:
        measure.remove(run)


def size(shape: Shape) -> dict[str, Any]:
    """A shape as Traindeck's knobs."""
    precision = "no" if shape.precision == "fp32" else shape.precision
    return {
        "n-layers": shape.layers, "hidden-dim": shape.width, "n-heads": shape.heads, "mlp-dim": shape.mlp,
        "max-seq-len": shape.length, "batch-size": shape.batch, "gradient-accumulation-steps": shape.accumulation,
        "vocab-size": shape.vocab_size, "device": shape.device, "mixed-precision": precision,
    }  # fmt: skip


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Knobs as flags; true and false as `--name` and `--no-name`."""
    made: list[str] = []
    for name, value in settings.items():
        if isinstance(value, bool):
            made.append(f"--{name}" if value else f"--no-{name}")
        else:
            made += [f"--{name}", str(value)]
    return made


def peer(name: str, shape: Shape, corpus: Corpus, steps: int, log_steps: int, more: Iterable[str] = ()) -> Trained:
    """A peer of bench/peers on the same tokens."""
    settings = {
        "layers": shape.layers, "width": shape.width, "heads": shape.heads, "length": shape.length,
        "batch": shape.batch, "accumulation": shape.accumulation, "vocab-size": shape.vocab_size,
        "device": shape.device, "precision": shape.precision, "steps": steps, "log-steps": log_steps,
    }  # fmt: skip
    if name == "hf_trainer":
        settings["mlp"] = shape.mlp
    return train([sys.executable, "-m", f"bench.peers.{name}", str(corpus.folder), *flags(settings), *more])
