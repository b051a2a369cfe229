"""Small models and batches, and engines built for them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from trainer_core.config import Config
from trainer_core.data.batch import IGNORE_INDEX, Batch
from trainer_core.models.decoder import Decoder
from trainer_core.progress import NullReporter, Reporter
from trainer_core.protocol import FastPath
from trainer_core.train.device import Precision
from trainer_core.train.engine import select
from trainer_core.train.engine.compilation import CompileFailed, CompileKey
from trainer_core.train.engine.engine import Engine
from trainer_core.train.model_shape import model_config_of

CPU = torch.device("cpu")
FP32 = Precision.from_name("fp32", CPU)
VOCAB_SIZE, LENGTH, ROWS = 64, 32, 3


def tiny_model_config(**values: Any) -> Config:
    """Configuration of a tiny model with grouped-query attention and QK norm."""
    tiny = {"hidden_dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "mlp_dim": 48, "qk_norm": True}
    return Config(**{**tiny, "max_seq_len": LENGTH, "batch_size": ROWS, "vocab_size": VOCAB_SIZE, **values})


def build_decoder(config: Config) -> Decoder:
    torch.manual_seed(1)
    return Decoder(model_config_of(config, VOCAB_SIZE))


def random_batch(length: int = LENGTH, rows: int = ROWS, packed: bool = False) -> Batch:
    """A batch of random tokens. With `packed`, each sequence holds three documents."""
    ids = torch.randint(0, VOCAB_SIZE, (rows, length), generator=torch.Generator().manual_seed(length))
    labels = ids.roll(-1, 1)
    labels[:, -1] = IGNORE_INDEX
    segments = positions = None
    if packed:
        starts = torch.tensor([0, length // 3, length // 2])
        segments = (torch.searchsorted(starts, torch.arange(length), right=True) - 1).expand(rows, -1)
        positions = (torch.arange(length) - starts[segments]).contiguous()
        segments = segments.to(torch.int32).contiguous()
    return Batch(ids, labels, int((labels != IGNORE_INDEX).sum()), rows, segments=segments, positions=positions)


def compile_key(config: Config, **values: Any) -> CompileKey:
    """Key of the graph that an engine compiles for this configuration."""
    shape = asdict(model_config_of(config, VOCAB_SIZE))
    defaults = {"rows": ROWS, "length": LENGTH, "segments": False, "varying": False, "device": "cpu"}
    return CompileKey(
        shape, **{**defaults, "precision": "fp32", "attention": "sdpa", "chunk": 0, "threads": 2, **values}
    )


def build_engine(
    config: Config,
    *,
    steps: int = 3,
    model: Decoder | None = None,
    example: Batch | None = None,
    recorded: dict[str, Any] | None = None,
    reporter: Reporter | None = None,
    step: int = 0,
    switch: bool = True,
) -> Engine:
    """Build the engine of a run of `steps` steps on a CPU. With `switch`, it has switched to compiled code."""
    model, example, reporter = model or build_decoder(config), example or random_batch(), reporter or NullReporter()
    engine = select.build_engine(
        config,
        model,
        CPU,
        FP32,
        reporter,
        rows=example.input_ids.shape[0],
        segments=example.segments is not None,
        varying=example.input_ids.shape[1] != config.max_seq_len,
        total_steps=steps,
        recorded=recorded or {},
        step=step,
    )
    if switch and engine.switch is not None:
        try:
            engine.switch.finish(example)
        finally:
            engine.close()
    return engine


def fast_path(engine: Engine, name: str) -> FastPath:
    return engine.fast_paths[name]


LONG_RUN = 10_000_000  # steps; compilation pays off


class FakeBackgroundCompiler:
    """A background compiler that finishes or fails immediately."""

    failure = ""

    def __init__(self, key: CompileKey) -> None:
        pass

    def wait(self, reporter: Reporter) -> None:
        if self.failure:
            raise CompileFailed(self.failure)

    def close(self) -> None:
        pass
