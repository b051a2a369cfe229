"""Writes run folders as a trainer would leave them, with made-up measurements: for screenshots and benchmarks."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

from trainer_core import checkpoint_dir, presets, protocol
from trainer_core.config import Config, to_dict
from trainer_core.run_dir import RunDir

_GIB = 1024**3
_WROTE = (
    (" total = 0\n    for i in range(n):\n        the the self", "a first guess at indentation"),
    (" path):\n        return self._name\n    def __init__(self, name):", ""),
    (' path):\n        """Return the file name."""\n        if not path:\n            return None', ""),
    (' path, mode=\'r\'):\n        """Open a file and return a stream."""\n        return open(path, mode)', ""),
)


def events(
    config: Config, *, steps: int, every: int, gpu: bool, done: bool, began: float
) -> Iterator[protocol.AnyEvent]:
    """A whole run: loss that falls as a power law, noise, evaluations, samples, checkpoints."""
    dice = random.Random(7)
    devices = ["NVIDIA RTX A6000"] if gpu else ["cpu"]
    total = steps if done else int(steps * 1.6)
    yield protocol.Hello(
        t=began, pid=4242, run_dir="", traindeck="0.1.0", python="3.12", torch="2.13.0", devices=devices,
        config=to_dict(config),
    )  # fmt: skip
    yield protocol.Phase(t=began, phase="preparing")
    yield protocol.Ready(
        t=began + 4, task="pretrain", train_documents=9120, train_tokens=48_210_000, validation_documents=480,
        validation_tokens=2_530_000, vocab_size=config.vocab_size, parameters=27_400_000, steps_per_epoch=total,
        total_steps=total,
    )  # fmt: skip
    yield protocol.Phase(t=began + 4, phase="training", step=0)
    speed = 92_000.0 if gpu else 5_400.0
    tokens_per_step = config.effective_batch * config.max_seq_len
    best = math.inf
    for step in range(every, steps + 1, every):
        now = began + 4 + step * tokens_per_step / speed
        true = 1.35 + 7.4 * (step + 12) ** -0.31
        shape = 0.55 + 0.45 * math.cos(math.pi * step / total)
        rate = config.learning_rate * min(1.0, step / config.warmup_steps) * shape
        norm = 0.4 + 2.2 / step**0.3 + abs(dice.gauss(0, 0.09))
        pace = speed * dice.gauss(1.0, 0.015) * (0.72 if step % (40 * every) == 0 else 1.0)
        yield protocol.Step(
            t=now, step=step, epoch=step / total, tokens=step * tokens_per_step, samples=step * config.effective_batch,
            loss=true + dice.gauss(0, 0.07), learning_rate=rate, grad_norm=norm,
            tokens_per_s=pace, samples_per_s=pace / config.max_seq_len, mfu=0.41 if gpu else None,
            time_ms=protocol.StepTime(data=0.4, transfer=0.6, forward=12.0, backward=24.0, optimizer=3.1, other=0.5),
        )  # fmt: skip
        yield protocol.Progress(
            t=now, phase="training", done=step, total=total, eta_s=(total - step) * tokens_per_step / speed
        )
        yield _hardware(now, gpu, step, dice)
        if step % (20 * every) == 0:
            loss = true + 0.11 + (0.04 if step > 0.8 * steps else 0.0)
            yield protocol.Eval(
                t=now, step=step, loss=loss, perplexity=math.exp(loss), tokens=51_200, seconds=1.2, best=loss < best
            )
            best = min(best, loss)
            text, _ = _WROTE[min(3, 4 * step // (steps + 1))]
            yield protocol.Sample(t=now, step=step, prompt="def open_file(self,", text=text)
        if step % (40 * every) == 0:
            name = checkpoint_dir.folder_name(step)
            yield protocol.Checkpoint(t=now, step=step, path=name, bytes=76_000_000, seconds=0.8, kind="regular")
    end = began + 5 + steps * tokens_per_step / speed
    if done:
        yield protocol.Done(
            t=end, reason="finished", steps=steps, total_steps=total, best_loss=best, final_loss=best,
            seconds=end - began, tokens_per_s=speed, tokens=steps * tokens_per_step,
            model=checkpoint_dir.folder_name(steps),
        )  # fmt: skip


def _hardware(now: float, gpu: bool, step: int, dice: random.Random) -> protocol.Hardware:
    used = int((19.4 + dice.gauss(0, 0.05)) * _GIB * (1 - math.exp(-step / 60)) + 1.2 * _GIB)
    card = protocol.Gpu(index=0, name="NVIDIA RTX A6000", utilization=0.97, vram_used=used, vram_total=48 * _GIB)
    resident = int((1.1 + 0.25 * (1 - math.exp(-step / 90)) + dice.gauss(0, 0.004)) * _GIB)
    host = protocol.Host(ram_used=9 * _GIB, ram_total=64 * _GIB, rss=resident, cpu=0.6, disk_free=200 * _GIB)
    return protocol.Hardware(t=now, gpus=[card] if gpu else [], host=host)


def write_run(
    path: Path, preset: str, data: list[str], *, steps: int = 2000, every: int = 5, gpu: bool = True, done: bool = True,
    age_s: float = 3600.0,
) -> RunDir:  # fmt: skip
    """A run folder with its configuration, events and the manifests of its last checkpoint."""
    run = RunDir(path)
    run.create()
    loaded = presets.load(preset)
    config = Config(**{**loaded.knobs, "preset": preset, "data": data})
    run.write_config(config)
    made = events(config, steps=steps, every=every, gpu=gpu, done=done, began=time.time() - age_s)
    with run.events.open("wb") as file:
        for number, event in enumerate(made, 1):
            event.seq = number
            if isinstance(event, protocol.Hello):
                event.run_dir = str(path)
            file.write(protocol.encode(event))
    folder = run.checkpoints / checkpoint_dir.folder_name(steps)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"\0" * 1024)
    checkpoint_dir.write_manifest(folder, steps, "final" if done else "regular", None)
    return run
