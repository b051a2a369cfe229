"""Small trainers in the test process, and faults that can be injected into them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.core.trainer_process import text_file
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.config import Config, ConfigLayer, resolve
from trainer_core.data.prepare import prepare
from trainer_core.progress import NullReporter
from trainer_core.run_context import RunContext
from trainer_core.runs.run_dir import RunDir
from trainer_core.train.device import Precision, choose_precision, configure_arithmetic
from trainer_core.train.device_transfer import AccumulationWindow
from trainer_core.train.process_group import SINGLE_PROCESS, ProcessGroup
from trainer_core.train.trainer import Trainer
from trainer_core.wire import EventDispatcher

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.64 GiB."


def pairs_file(folder: Path) -> Path:
    """Prompts and responses of very different lengths, so that token weighting matters."""
    path = folder / "pairs.jsonl"
    rows = ({"prompt": f"{n} + 1 =", "response": "x" * (1 + n * 7 % 20) + str(n + 1)} for n in range(210))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def preference_file(folder: Path, labelled: bool) -> Path:
    """Answers that begin with yes are good. Lengths differ."""
    path = folder / f"{'labelled' if labelled else 'pairs'}.jsonl"
    rows: list[dict[str, Any]] = []
    for n in range(160):
        prompt, good, bad = f"{n} + 1 = ?", "yes " + "x" * (n * 7 % 11), "no " + "y" * (n * 5 % 13)
        if labelled:
            rows.append({"prompt": prompt, "completion": bad if n % 3 else good, "label": n % 3 == 0})
        else:
            rows.append({"prompt": prompt, "chosen": good, "rejected": bad})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def tiny_config(folder: Path, data: Path, **values: object) -> Config:
    tiny = {
        "data": [str(data)], "cache_dir": str(folder / "cache"), "hidden_dim": 32, "n_layers": 2, "n_heads": 2,
        "max_seq_len": 48, "vocab_size": 320, "batch_size": 12, "warmup_steps": 2, "learning_rate": 3e-3,
        "log_steps": 1, "eval_steps": 4, "eval_batches": 2, "sample_steps": 0, "sample_tokens": 4,
        "save_steps": 0, "max_steps": 6, "device": "cpu",
    }  # fmt: skip
    return resolve([ConfigLayer("test", {**tiny, **values})])


def oom_config(folder: Path, **values: object) -> Config:
    """Configuration of a run with simulated out-of-memory errors."""
    defaults = {"eval_steps": 0, "max_steps": 8, "cpu_threads": 1, "perf_steps": 0, "compile": "off"}
    return tiny_config(folder, text_file(folder), **{**defaults, **values})


def build_trainer(
    folder: Path,
    config: Config,
    name: str = "run",
    group: ProcessGroup = SINGLE_PROCESS,
    precision: Precision | None = None,
) -> tuple[Trainer, RecordingSink]:
    """A trainer with the run directory `folder / name`, and the sink that records its events."""
    sink, device = RecordingSink(), torch.device(config.device)
    configure_arithmetic(config, device)
    run = RunDir(folder / name)
    run.create()
    precision = precision or choose_precision(config.mixed_precision, device, NullReporter())
    context = RunContext(EventDispatcher(sink))
    trainer = Trainer(config, prepare(config, NullReporter()), run, context, device, precision, group)
    return trainer, sink


def losses(sink: RecordingSink) -> list[float]:
    """Losses of the step events."""
    return [event.loss for event in sink.events_of(protocol.Step)]


def copy_weights(trainer: Trainer) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in trainer.model.parameters()]


def call_after_steps(trainer: Trainer, callback: Callable[[int], None]) -> None:
    """Call `callback` with the step number after each step."""
    after_step = trainer._after_step

    def call() -> None:
        after_step()
        callback(trainer.state.counters.step)

    trainer._after_step = call  # type: ignore[method-assign]


def record_samples(trainer: Trainer) -> list[tuple[int, ...]]:
    """A list to which each later step appends the numbers of its samples."""
    steps: list[tuple[int, ...]] = []
    run_step = trainer._step

    def record(window: AccumulationWindow) -> None:
        steps.append(tuple(number for batch in window.whole for number in batch.sample_ids))
        run_step(window)

    trainer._step = record  # type: ignore[method-assign]
    return steps


def first_epoch(trainer: Trainer, steps: int = 20) -> list[tuple[int, ...]]:
    """The samples of the first steps of the first epoch."""
    return [batch.sample_ids for batch in trainer.train_data.iterate_epoch(0)][:steps]


def corrupt_gradients(trainer: Trainer, *steps: tuple[int, ...], factor: float = math.nan) -> None:
    """Multiply the loss, and so the gradients, of batches with these samples by `factor`."""
    trainer.set_up()
    loss = trainer.engine.loss
    samples = {number for step in steps for number in step}

    def corrupted(batch: Any, *grad_scale: Any) -> torch.Tensor:
        return loss(batch, *grad_scale) * (factor if samples & set(batch.sample_ids) else 1.0)

    trainer.engine.loss = corrupted  # type: ignore[method-assign]


def limit_batch_size(trainer: Trainer, rows: int, when: Callable[[], bool] = lambda: True) -> None:
    """Raise out-of-memory errors for micro-batches of more than `rows` sequences while `when` is true."""
    if not trainer._is_set_up:
        trainer.set_up()

    def limited(compute: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def loss(batch: Any, *grad_scale: Any) -> torch.Tensor:
            if batch.input_ids.shape[0] > rows and when():
                raise torch.OutOfMemoryError(OUT_OF_MEMORY)
            return compute(batch, *grad_scale)

        return loss

    engine = trainer.engine
    engine.loss, engine.eager_loss = limited(engine.loss), limited(engine.eager_loss)  # type: ignore[method-assign]


def recovery_actions(sink: RecordingSink) -> list[tuple[str, str, int, int]]:
    """Action, phase, batch size and accumulation steps of each OOM recovery."""
    return [
        (event.action, event.during, event.batch_size, event.gradient_accumulation_steps)
        for event in sink.events_of(protocol.OomRecovery)
    ]
