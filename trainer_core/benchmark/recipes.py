"""Real training runs beside each other: `python -m trainer_core train` in processes of its own, taking turns.

The untuned recipe is that of the guides this product grew from: batch 12, fp32, no workers, no compile, eager
attention. The preset is as it is. Tuned is the same model with everything left to Traindeck, and on a GPU a batch
that fills it. All have the preset's optimizer: another one costs other time, and learns otherwise. A process of its
own for each run gives each a clean memory, and one that fails takes nothing with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Final, Literal

import msgspec
import torch
import yaml

from trainer_core import protocol
from trainer_core.config import Config, to_dict
from trainer_core.messages import TraindeckError
from trainer_core.runs import run_dir

Name = Literal["untuned", "preset", "tuned"]

_UNTUNED: Final[dict[str, Any]] = {
    "batch_size": 12, "mixed_precision": "no", "num_workers": 0, "pin_memory": False, "compile": "off",
    "cuda_graphs": "off", "attention": "math", "chunked_loss": "off", "activation_checkpointing": "off", "tf32": False,
    "vocab_multiple": 1, "deterministic": False,
}  # fmt: skip
_TUNED: Final[dict[str, Any]] = {
    "mixed_precision": "auto", "num_workers": -1, "pin_memory": True, "low_memory": False, "compile": "auto",
    "cuda_graphs": "auto", "attention": "auto", "chunked_loss": "auto", "tf32": True, "cpu_threads": 0,
    "deterministic": False, "activation_checkpointing": "off",
}  # fmt: skip
_ALL: Final[dict[str, Any]] = {  # nothing but steps, in a run that is long enough for everything to pay
    "max_steps": 1_000_000, "eval_steps": 0, "eval_batches": 1, "eval_examples": 0, "save_steps": 0, "sample_steps": 0,
    "keep_best": 0, "perf_steps": 10, "flops_steps": 0, "hardware_interval_s": 0.5, "use_wandb": False,
}  # fmt: skip
_FILLS: Final = 16_384  # tokens of a micro-batch that keep a GPU busy
_WARM: Final = 2  # reports that are left out: the first steps take memory, and choose kernels
_LEAST: Final = 4  # reports
_PARTS: Final = 5  # of what is measured, whose median counts
_TOLD: Final = 300  # characters of what a process said when it broke


@dataclass(slots=True)
class Recipe:
    """One way to train, and what its runs gave."""

    name: Name
    config: Config
    runs: dict[int, Run] = field(default_factory=dict)  # by round
    error: tuple[str, dict[str, Any]] | None = None  # code and parameters of what ended it

    def use(self, prepared: Config) -> None:
        """Take data, tokenizer and cache from a configuration that was prepared."""
        self.config = msgspec.structs.replace(
            self.config, data=prepared.data, tokenizer=prepared.tokenizer, cache_dir=prepared.cache_dir
        )

    @property
    def speeds(self) -> list[float]:
        """Tokens a second of each run."""
        return [run.tokens_per_s for run in self.runs.values()]


@dataclass(frozen=True, slots=True)
class Run:
    """What one process reached. Bytes; `utilization` 0..1; None: not known."""

    tokens_per_s: float
    step_ms: float
    steps: int
    precision: str
    parameters: int
    start_s: float  # from the start of the process to its first step
    compile_s: float | None
    fast_paths: list[protocol.FastPath]
    peak_vram: int | None
    utilization: float | None
    mfu: float | None
    in_parts: bool  # memory ended, and it went on in smaller parts


def recipes(config: Config, on_gpu: bool, accumulation: int, given: Collection[str] = ()) -> list[Recipe]:
    """What is compared. On a GPU the tuned batch is enlarged; all accumulate as many micro-batches a step. Knobs that
    were `given` by name are tuned by nobody."""
    common = {**_ALL, "gradient_accumulation_steps": accumulation}
    batch = config.batch_size
    if on_gpu:
        batch = max(batch, -(-_FILLS // config.max_seq_len // 8) * 8)
    tuned = {**_TUNED, "batch_size": batch}
    chosen: dict[Name, dict[str, Any]] = {
        "untuned": {**_UNTUNED, "cpu_threads": torch.get_num_threads()},
        "preset": {},
        "tuned": {name: value for name, value in tuned.items() if name not in given},
    }
    return [
        Recipe(name, msgspec.structs.replace(config, **common, **knobs, log_steps=4 if on_gpu else 1))
        for name, knobs in chosen.items()
    ]


def train(recipe: Recipe, number: int, folder: Path, seconds: float) -> None:
    """The run of a recipe in round `number`, measured for about `seconds` once it is warm; the result is added to it.

    Out of memory halves the tuned batch and is tried again. Raises `TraindeckError` where the trainer failed otherwise.
    """
    while True:
        halves = recipe.name == "tuned" and recipe.config.batch_size > 1
        with _started(recipe.config, folder) as child:
            try:
                recipe.runs[number] = _measured(child, seconds, halves)
                return
            except TraindeckError as error:
                if error.code not in ("memory.out", "memory.exhausted") or not halves:
                    raise
        recipe.config = msgspec.structs.replace(recipe.config, batch_size=recipe.config.batch_size // 2)
        recipe.runs.clear()


# --- a process -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    lines: queue.SimpleQueue[bytes | None]
    told: IO[bytes]
    began: float

    def events(self) -> Iterator[protocol.AnyEvent]:
        """What it says until it ends; waits in short pieces, so that Ctrl+C is heard on Windows too."""
        while True:
            try:
                line = self.lines.get(timeout=0.2)
            except queue.Empty:
                continue
            if line is None:
                return
            with contextlib.suppress(protocol.ProtocolError):
                yield protocol.decode_event(line)

    def last_words(self) -> str:
        self.told.seek(0)
        return self.told.read().decode("utf-8", "replace").strip()[-_TOLD:]


@contextlib.contextmanager
def _started(config: Config, folder: Path) -> Iterator[_Child]:
    """A trainer in a run folder of its own. It is ended, and the folder is removed, whatever happens."""
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as run, tempfile.TemporaryFile() as told:
        written = Path(run, "bench.yaml")
        written.write_text(yaml.safe_dump(to_dict(config), allow_unicode=True), encoding="utf-8")
        command = [sys.executable, "-m", "trainer_core", "train", "--config", str(written)]
        process = subprocess.Popen(
            [*command, "--run-dir", str(Path(run, "run")), "--restarts", "0", "--output", "json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=told,
            cwd=Path(__file__).resolve().parents[2],
            env={**os.environ, "TRAINDECK_HOME": str(run_dir.home())},
        )
        assert process.stdout is not None
        lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        try:
            yield _Child(process, lines, told, time.time())
        finally:
            process.kill()  # it has nothing to save
            process.wait()
            reader.join()


def _read(stream: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
    stream.close()


def _measured(child: _Child, seconds: float, whole: bool) -> Run:
    """`whole`: memory that ends is an error (`memory.out`); else what goes on in smaller parts counts, and says so."""
    steps: list[protocol.Step] = []
    seen: dict[str, Any] = {"hardware": [], "memory": [], "in_parts": False}
    for event in child.events():
        match event:
            case protocol.Hello() | protocol.Ready() as told:
                seen[type(told).__name__] = told
            case protocol.Hardware():
                seen["hardware"].append(event)
            case protocol.Performance():
                seen["memory"].append(event.memory_peak)
            case protocol.MemoryMove():
                if whole:
                    raise TraindeckError("memory.out", device=seen["Hello"].devices[0], step=event.step)
                seen["in_parts"] = True
            case protocol.Error():
                raise TraindeckError(event.code, event.detail, **_plain(event.params))
            case protocol.Step():
                steps.append(event)
                if len(steps) >= _WARM + _LEAST and event.t - steps[_WARM].t >= seconds:
                    return _run(child.began, steps, seen)
            case _:
                pass
    raise TraindeckError("internal", child.last_words(), kind=f"exit code {child.process.wait()}", log="stderr")


def _run(began: float, steps: list[protocol.Step], seen: Mapping[str, Any]) -> Run:
    """The median over parts of what is behind the first reports, by the clock that each report carries.

    Parts, not single reports: on a GPU reports are read late, and may come in twos.
    """
    warm = steps[_WARM:]
    parts = min(_PARTS, len(warm) - 1)
    bounds = [warm[number * (len(warm) - 1) // parts] for number in range(parts + 1)]
    pairs = [(a, b) for a, b in pairwise(bounds) if b.t > a.t]  # the clock of Windows stands still for 16 ms
    step_ms = statistics.median((b.t - a.t) / (b.step - a.step) * 1000 for a, b in pairs)
    speed = statistics.median((b.tokens - a.tokens) / (b.t - a.t) for a, b in pairs)
    gpus = [gpu for event in seen["hardware"] if event.t >= warm[0].t for gpu in event.gpus if gpu.torch_allocated]
    busy = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    taken = [gpu.torch_reserved for gpu in gpus if gpu.torch_reserved] + [size for size in seen["memory"] if size]
    ready: protocol.Ready = seen["Ready"]
    return Run(
        tokens_per_s=speed,
        step_ms=step_ms,
        steps=warm[-1].step - warm[0].step,
        precision=seen["Hello"].precision,
        parameters=ready.parameters,
        start_s=steps[0].t - began,
        compile_s=ready.compile_s,
        fast_paths=ready.fast_paths,
        peak_vram=max(taken, default=None),
        utilization=statistics.mean(busy) if busy else None,
        mfu=warm[-1].mfu,
        in_parts=seen["in_parts"],
    )


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, str | int | float | None) else json.dumps(value)
        for name, value in params.items()
    }
