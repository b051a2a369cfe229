"""Writes run folders with simulated measurements, for screenshots and benchmarks."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

from trainer_core import presets, protocol
from trainer_core.config import Config, to_dict
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir

_GIB = 1024**3
_SAMPLE_TEXTS = (
    " total = 0\n    for i in range(n):\n        the the self",
    " path):\n        return self._name\n    def __init__(self, name):",
    ' path):\n        """Return the file name."""\n        if not path:\n            return None',
    ' path, mode=\'r\'):\n        """Open a file and return a stream."""\n        return open(path, mode)',
)

_PATHS = [
    protocol.FastPath(name="compile", used=True, choice="inductor", reason="path.on", error=8.4e-5, speedup=1.83),
    protocol.FastPath(name="cuda_graphs", used=False, reason="path.not_worth", params={"cost": 12.4, "saved": 3.07}),
    protocol.FastPath(name="attention", used=True, choice="flash", reason="path.fastest", error=2.2e-4, speedup=1.31),
    protocol.FastPath(name="varlen_attention", used=False, reason="path.not_needed"),
    protocol.FastPath(name="flash3", used=False, reason="path.not_installed", params={"package": "flash-attn-3"}),
    protocol.FastPath(
        name="flash2",
        used=False,
        reason="path.failed",
        params={
            "reason": "ImportError: flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: "
            "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
        },
    ),
    protocol.FastPath(name="fused_adamw", used=True, reason="path.on", error=0.0, speedup=3.6),
    protocol.FastPath(
        name="chunked_loss", used=False, reason="path.differs", params={"error": 0.0123456, "tolerance": 0.005}
    ),
    protocol.FastPath(name="tf32", used=True, reason="path.on", error=3.1e-4, speedup=1.42),
    protocol.FastPath(name="precision", used=True, choice="bf16", reason="path.on", speedup=2.1),
    protocol.FastPath(name="activation_checkpointing", used=False, reason="path.off"),
]
_ROWS = [
    protocol.FlopsRow(
        module=f"model.layers.{layer}.{part}", forward=share * 8.4e11, backward=share * 1.68e12, share=share
    )
    for layer in range(12)
    for part, share in (("self_attn", 0.021), ("mlp", 0.042))
] + [protocol.FlopsRow(module="lm_head", forward=2.0e11, backward=4.1e11, share=0.244)]


def events(
    config: Config, *, steps: int, every: int, gpu: bool, done: bool, started_at: float
) -> Iterator[protocol.AnyEvent]:
    """Events of a run whose loss follows a power law with noise, with an event every `every` steps."""
    rng = random.Random(7)
    devices = ["NVIDIA RTX A6000"] if gpu else ["cpu"]
    total = steps if done else int(steps * 1.6)
    yield protocol.Hello(
        t=started_at, pid=4242, run_dir="", traindeck="0.1.0", python="3.12", torch="2.13.0", devices=devices,
        config=to_dict(config), precision="bf16" if gpu else "fp32", fast_paths=_PATHS[6:9] if gpu else [],
    )  # fmt: skip
    yield protocol.Phase(t=started_at, phase="preparing")
    yield protocol.Ready(
        t=started_at + 4, task="pretrain", train_documents=9120, train_tokens=48_210_000, validation_documents=480,
        validation_tokens=2_530_000, vocab_size=config.vocab_size, parameters=27_400_000, steps_per_epoch=total,
        total_steps=total, fast_paths=_PATHS if gpu else [],
    )  # fmt: skip
    if gpu:
        yield protocol.Compiled(t=started_at + 4, step=0, compile_s=34.2, fast_paths=_PATHS)
    yield protocol.Phase(t=started_at + 4, phase="training", step=0)
    speed = 92_000.0 if gpu else 5_400.0
    tokens_per_step = config.effective_batch * config.max_seq_len
    best = math.inf
    for step in range(every, steps + 1, every):
        now = started_at + 4 + step * tokens_per_step / speed
        trend = 1.35 + 7.4 * (step + 12) ** -0.31
        decay = 0.55 + 0.45 * math.cos(math.pi * step / total)
        learning_rate = config.learning_rate * min(1.0, step / config.warmup_steps) * decay
        grad_norm = 0.4 + 2.2 / step**0.3 + abs(rng.gauss(0, 0.09))
        tokens_per_s = speed * rng.gauss(1.0, 0.015) * (0.72 if step % (40 * every) == 0 else 1.0)
        yield protocol.Step(
            t=now, step=step, epoch=step / total, tokens=step * tokens_per_step, samples=step * config.effective_batch,
            loss=trend + rng.gauss(0, 0.07), learning_rate=learning_rate, grad_norm=grad_norm,
            tokens_per_s=tokens_per_s, samples_per_s=tokens_per_s / config.max_seq_len, mfu=0.41 if gpu else None,
            time_ms=_step_time(step, every, rng),
        )  # fmt: skip
        if gpu and step % (10 * every) == 0:
            yield from _performance(now, step, speed, rng)
        if gpu and step == 60 * every:
            yield protocol.BadStep(
                t=now,
                step=step - 3,
                kind="spike",
                grad_norm=48.7,
                mean_grad_norm=0.91,
                action="skipped",
                samples=[1204, 88, 19_533],
            )
            yield protocol.FlopsProfile(t=now, step=step, tokens=16_384, total=2.53e12, formula=2.54e12, rows=_ROWS)
        yield protocol.Progress(
            t=now, phase="training", done=step, total=total, eta_s=(total - step) * tokens_per_step / speed
        )
        yield _hardware(now, gpu, step, rng)
        if step % (20 * every) == 0:
            loss = trend + 0.11 + (0.04 if step > 0.8 * steps else 0.0)
            yield protocol.Eval(
                t=now, step=step, loss=loss, perplexity=math.exp(loss), tokens=51_200, seconds=1.2, best=loss < best
            )
            best = min(best, loss)
            text = _SAMPLE_TEXTS[min(3, 4 * step // (steps + 1))]
            yield protocol.Sample(t=now, step=step, prompt="def open_file(self,", text=text)
        if step % (40 * every) == 0:
            name = checkpoint_dir.folder_name(step)
            yield protocol.Checkpoint(t=now, step=step, path=name, bytes=76_000_000, seconds=0.8, kind="regular")
    end = started_at + 5 + steps * tokens_per_step / speed
    if done:
        yield protocol.Done(
            t=end, reason="finished", steps=steps, total_steps=total, best_loss=best, final_loss=best,
            seconds=end - started_at, tokens_per_s=speed, tokens=steps * tokens_per_step,
            model=checkpoint_dir.folder_name(steps),
        )  # fmt: skip


def _step_time(step: int, every: int, rng: random.Random) -> protocol.StepTime:
    """Times of a step. The first steps and steps with a checkpoint are slower."""
    slow = 1.0 + 0.5 * math.exp(-step / (4 * every)) + abs(rng.gauss(0, 0.02))
    saving = 6.0 if step % (40 * every) == 0 else 0.0
    return protocol.StepTime(
        data=0.4 * slow, transfer=0.6, forward=12.0 * slow, backward=24.0 * slow, optimizer=3.1,
        checkpoint=saving, other=0.5,
    )  # fmt: skip


def _performance(now: float, step: int, speed: float, rng: random.Random) -> Iterator[protocol.Performance]:
    yield protocol.Performance(
        t=now, step=step, data_ratio=0.01, compute_ratio=0.96, mfu=0.41 + rng.gauss(0, 0.004), flops_per_token=1.54e8,
        peak_flops=154.8e12, peak_name="NVIDIA RTX A6000, bf16", memory_allocated=14 * _GIB, memory_reserved=20 * _GIB,
        memory_peak=19 * _GIB, energy_j=9000.0, energy_per_million_tokens_j=1e6 * 296 / speed,
        gradient_noise=20.0 + 0.15 * step,
    )  # fmt: skip


def _hardware(now: float, gpu: bool, step: int, rng: random.Random) -> protocol.Hardware:
    used = int((19.4 + rng.gauss(0, 0.05)) * _GIB * (1 - math.exp(-step / 60)) + 1.2 * _GIB)
    card = protocol.Gpu(index=0, name="NVIDIA RTX A6000", utilization=0.97, vram_used=used, vram_total=48 * _GIB)
    resident = int((1.1 + 0.25 * (1 - math.exp(-step / 90)) + rng.gauss(0, 0.004)) * _GIB)
    host = protocol.Host(ram_used=9 * _GIB, ram_total=64 * _GIB, rss=resident, cpu=0.6, disk_free=200 * _GIB)
    return protocol.Hardware(t=now, gpus=[card] if gpu else [], host=host)


def write_run(
    path: Path, preset: str, data: list[str], *, steps: int = 2000, every: int = 5, gpu: bool = True, done: bool = True,
    age_s: float = 3600.0,
) -> RunDir:  # fmt: skip
    """Write a run folder with its configuration, its events and its last checkpoint."""
    run = RunDir(path)
    run.create()
    loaded = presets.load(preset)
    config = Config(**{**loaded.knobs, "preset": preset, "data": data})
    run.write_config(config)
    simulated = events(config, steps=steps, every=every, gpu=gpu, done=done, started_at=time.time() - age_s)
    with run.events.open("wb") as file:
        for number, event in enumerate(simulated, 1):
            event.seq = number
            if isinstance(event, protocol.Hello):
                event.run_dir = str(path)
            file.write(protocol.encode(event))
    folder = run.checkpoints / checkpoint_dir.folder_name(steps)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"\0" * 1024)
    checkpoint_dir.write_manifest(folder, steps, "final" if done else "regular", None)
    return run
