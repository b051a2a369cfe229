"""Training runs of Traindeck and its peers, which have the same configuration and emit the same kinds of events."""

import os
import shutil
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.core import command_line
from bench.data import home_of
from bench.processes import ChildProcess, Events, python
from trainer_core.config import Config, to_dict
from trainer_core.messages.exit_codes import ExitCode

_INTERVALS: Final = 5  # of the measured steps, whose median counts
_EXIT_TIMEOUT_S: Final = 60.0
_QUIET: Final = {
    "eval_steps": 0, "eval_batches": 1, "save_steps": 0, "keep_best": 0, "sample_steps": 0, "sample_tokens": 1,
}  # fmt: skip
_GPU: Final = {"max_seq_len": 1024, "vocab_size": 50304, "device": "cuda", "mixed_precision": "bf16"}


def _config(**knobs: Any) -> Config:
    """A configuration in fp32 on a CPU unless `knobs` has others, without evaluations and regular checkpoints."""
    return Config(**{"device": "cpu", "mixed_precision": "no", **_QUIET, **knobs})


CONFIGS: Final = {
    "small": _config(n_layers=4, hidden_dim=128, n_heads=4, mlp_dim=384, max_seq_len=64, batch_size=12, vocab_size=512),
    "quickstart": _config(
        n_layers=4, hidden_dim=128, n_heads=2, mlp_dim=384, max_seq_len=128, batch_size=16, vocab_size=2048
    ),
    "gpt2_124m": _config(
        n_layers=12, hidden_dim=768, n_heads=12, mlp_dim=2048, **_GPU, batch_size=12, gradient_accumulation_steps=4
    ),
    "1b": _config(
        n_layers=20, hidden_dim=2048, n_heads=32, mlp_dim=5504, **_GPU, batch_size=8, gradient_accumulation_steps=2
    ),
    "tiny": _config(n_layers=1, hidden_dim=32, n_heads=1, mlp_dim=64, max_seq_len=32, batch_size=4, vocab_size=512),
}
"""Sizes of the model and the batch. `tiny` is for trying a benchmark. `mlp_dim` does not apply to GPT-2."""
LORA: Final = _config(
    method="lora", packing=True, mixed_precision="bf16", learning_rate=2e-4, lr_schedule="constant", warmup_steps=0,
    weight_decay=0.0, validation_fraction=0.0, log_steps=1,
)  # fmt: skip
"""LoRA of rank 16 on packed conversations."""


def describe(config: Config) -> str:
    precision = "fp32" if config.mixed_precision == "no" else config.mixed_precision
    return (
        f"{config.n_layers} layers, {config.hidden_dim} wide, {config.max_seq_len} tokens, batch {config.batch_size} x "
        f"{config.gradient_accumulation_steps}, vocabulary {config.vocab_size:,}, {precision} on {config.device}"
    )


def tokens_per_step(config: Config) -> int:
    return config.effective_batch * config.max_seq_len


def step_ms(events: Events, warmup_steps: int) -> float:
    """Wall time of a step: the median of intervals of the run after the warmup and the compilation.

    Intervals span several events, because on a GPU events are late and may arrive in pairs.
    """
    warmup_steps = max(warmup_steps, events.first("compiled").get("step", 0) + 2)
    steps = [event for event in events.of("step") if event["step"] >= warmup_steps]
    if len(steps) < 2:
        raise RuntimeError(f"only {len(steps)} step events after step {warmup_steps}")
    intervals = min(_INTERVALS, len(steps) - 1)
    ends = [steps[number * (len(steps) - 1) // intervals] for number in range(intervals + 1)]
    times = [(later["t"] - earlier["t"]) / (later["step"] - earlier["step"]) for earlier, later in pairwise(ends)]
    return float(1000 * statistics.median(times))


def compilation(events: Events) -> dict[str, Any]:
    """Compilation time and fast paths, as far as reported."""
    compiled = events.first("compiled")
    paths = (compiled or events.first("ready")).get("fast_paths")
    return {"compile_s": compiled.get("compile_s"), "fast_paths": paths}


def environment(config: Config) -> dict[str, str]:
    """Environment of a training process. It uses one GPU: the Hugging Face Trainer would use all, with a batch each."""
    first_gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    return {"CUDA_VISIBLE_DEVICES": first_gpu, "HF_HUB_OFFLINE": "1", "TRAINDECK_HOME": str(home_of(config))}


def run_peer(module: str, config: Config) -> ChildProcess:
    """Run a peer of bench/peers. Raises `RuntimeError` if it fails."""
    command = python(f"bench.peers.{module}", msgspec.json.encode(config).decode())
    child = ChildProcess(command, environment(config))
    child.wait(allowed=[ExitCode.FINISHED])
    return child


def run_traindeck(
    config: Config, run_dir: Path, stop_at_step: int = 0, stop_at_event: str = "", timeout_s: float | None = None
) -> ChildProcess:
    """Run `train` to its end, or stop it at a step or a kind of event. Removes the run folder.

    With `stop_at_step` the run is configured to be much longer: a short run would not be compiled. Raises
    `RuntimeError` if the run fails or times out.
    """
    if stop_at_step:
        config = replace(config, max_steps=max(20_000, 100 * stop_at_step))
    shutil.rmtree(run_dir, ignore_errors=True)
    arguments = command_line.train_arguments(None, to_dict(config), config.data, str(run_dir))
    command = python("trainer_core", *arguments, "--output", "json", "--control", "stdin")
    child = ChildProcess(command, environment(config))

    def must_stop(events: Events) -> bool:
        last_step = max((event["step"] for event in events.of("step")), default=0)
        return 0 < stop_at_step <= last_step or bool(events.of(stop_at_event))

    try:
        stopped = child.wait_until(must_stop, timeout_s)
        if stopped:
            child.request_stop()
        child.wait(timeout_s if stopped else _EXIT_TIMEOUT_S, allowed=[ExitCode.FINISHED, ExitCode.STOPPED])
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    return child
