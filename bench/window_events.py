"""Synthetic events of a trainer: lines of events.jsonl with random measurements."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from trainer_core import presets, protocol
from trainer_core.config import Config, to_dict
from trainer_core.runs.run_dir import RunDir

_STEPS_OF_TWENTY: Final = 13  # of 20 events; 4 are hardware samples, 2 progress, 1 performance
_GIB: Final = 1024**3


def head(run: Path, config: Config, began: float) -> Iterator[bytes]:
    """The first events of a run."""
    yield protocol.encode(
        protocol.Hello(t=began, seq=1, pid=1, run_dir=str(run), traindeck="0", python="3", torch="2",
                       devices=["GPU"], config=to_dict(config))
    )  # fmt: skip
    yield protocol.encode(protocol.Phase(t=began, seq=2, phase="training", step=0))


def _kind(number: int) -> str:
    """Type of the event with this number."""
    if number % 5000 < 2:
        return "eval" if number % 5000 else "checkpoint"
    place = number % 20
    return "step" if place < _STEPS_OF_TWENTY else "hardware" if place < 17 else "progress" if place < 19 else "perf"


def steps(count: int) -> int:
    """Number of steps among `count` events."""
    return sum(_kind(number) == "step" for number in range(3, count + 3))


def measurements(count: int, began: float, every_s: float = 0.05) -> Iterator[bytes]:
    """`count` lines, mostly steps with 20 figures each; some checkpoints and evaluations."""
    rng = random.Random(7)
    step = 0
    templates = {kind: _template(event) for kind, event in _EXAMPLES.items()}
    for number in range(3, count + 3):
        kind, now = _kind(number), began + number * every_s
        step += kind == "step"
        if kind == "checkpoint":
            yield protocol.encode(protocol.Checkpoint(t=now, seq=number, step=step, path=f"step-{step:08d}",
                                                      bytes=1 << 26, seconds=0.5, kind="regular"))  # fmt: skip
        elif kind == "eval":
            yield protocol.encode(protocol.Eval(t=now, seq=number, step=step, loss=3.0 + rng.random(), perplexity=20.0,
                                                tokens=9000, seconds=1.0))  # fmt: skip
        else:
            yield templates[kind] % _values(kind, now, number, step, rng)


_TIMES: Final = protocol.StepTime(data=-1.0, transfer=-1.0, forward=-1.0, backward=-1.0, optimizer=-1.0, other=-1.0)
_EXAMPLES: Final[dict[str, protocol.AnyEvent]] = {
    "step": protocol.Step(
        t=-1.0, seq=-2, step=-2, epoch=-1.0, tokens=-2, samples=-2, loss=-1.0, learning_rate=-1.0, grad_norm=-1.0,
        tokens_per_s=-1.0, samples_per_s=-1.0, mfu=-1.0, time_ms=_TIMES,
    ),
    "hardware": protocol.Hardware(
        t=-1.0, seq=-2,
        gpus=[protocol.Gpu(index=0, name="NVIDIA RTX A6000", utilization=-1.0, vram_used=-2, vram_total=48 * _GIB,
                           torch_allocated=-2, torch_reserved=-2, power_w=-1.0, power_limit_w=300.0,
                           temperature_c=-1.0, clock_mhz=1800)],
        host=protocol.Host(ram_used=-2, ram_total=64 * _GIB, rss=-2, cpu=-1.0, disk_free=-2),
    ),
    "progress": protocol.Progress(t=-1.0, seq=-2, phase="training", done=-1.0, total=1e6, eta_s=-1.0),
    "perf": protocol.Performance(
        t=-1.0, seq=-2, step=-2, data_ratio=-1.0, compute_ratio=-1.0, mfu=-1.0, flops_per_token=1.5e8,
        memory_allocated=-2, memory_reserved=-2, memory_peak=-2, gradient_noise=-1.0,
    ),
}  # fmt: skip
_FLOATS: Final = {kind: protocol.encode(event).count(b"-1.0") - 1 for kind, event in _EXAMPLES.items()}


def _template(event: protocol.AnyEvent) -> bytes:
    """A line with placeholders for `t`, counters and other values."""
    line = protocol.encode(event).replace(b"%", b"%%")
    line = line.replace(b'"t":-1.0', b'"t":%(t).6f').replace(b'"seq":-2', b'"seq":%(seq)d')
    line = line.replace(b'"step":-2', b'"step":%(step)d').replace(b'"tokens":-2', b'"tokens":%(tokens)d')
    line = line.replace(b":-2", b":%(whole)d")
    parts = line.split(b"-1.0")
    return b"".join(part + b"%%(v%d)r" % place for place, part in enumerate(parts[:-1])) + parts[-1]


def _values(kind: str, now: float, seq: int, step: int, rng: random.Random) -> dict[bytes, Any]:
    found: dict[bytes, Any] = {
        b"t": now, b"seq": seq, b"step": step, b"tokens": step * 8192, b"whole": rng.randrange(1 << 34),
    }  # fmt: skip
    for place in range(_FLOATS[kind]):
        found[b"v%d" % place] = rng.random()
    return found


def write_run(run: RunDir, count: int) -> None:
    """A finished run on disk with `count` events."""
    run.create()
    config = Config(**{**presets.load("quickstart").knobs, "preset": "quickstart", "data": ["builtin:python"]})
    run.write_config(config)
    began = time.time() - count * 0.05 - 60
    with run.events.open("wb") as file:
        file.writelines(head(run.path, config, began))
        file.writelines(measurements(count - 3, began))
        done = protocol.Done(t=began + count * 0.05, seq=count, reason="finished", steps=count, total_steps=count)
        file.write(protocol.encode(done))


def main() -> None:
    """`python -m bench.window_events COUNT RATE`: emits events like a trainer, `RATE` per second."""
    count, rate = int(sys.argv[1]), float(sys.argv[2])
    out = sys.stdout.buffer
    began = time.time()
    out.writelines(head(Path("bench"), Config(), began))
    _write_at_rate(measurements(count, began, 1.0 / rate), count, rate)
    out.write(protocol.encode(protocol.Done(seq=count + 3, reason="finished", steps=count, total_steps=count)))
    out.flush()


def _write_at_rate(lines: Iterator[bytes], count: int, rate: float) -> None:
    sent, start = 0, time.monotonic()
    while sent < count:
        due = min(count, int((time.monotonic() - start) * rate))
        sys.stdout.buffer.writelines(islice(lines, due - sent))
        sys.stdout.buffer.flush()
        sent = due
        time.sleep(0.01)


if __name__ == "__main__":
    main()
