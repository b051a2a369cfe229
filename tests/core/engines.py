"""Small models and batches, and engines built for them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from trainer_core.config import Config
from trainer_core.data.loader import IGNORE_INDEX, Batch
from trainer_core.models.decoder import Decoder, ModelConfig
from trainer_core.progress import NullReporter, Reporter
from trainer_core.protocol import FastPath
from trainer_core.train.device import Precision
from trainer_core.train.engine import select
from trainer_core.train.engine.compilation import CompileKey
from trainer_core.train.engine.engine import Engine

CPU = torch.device("cpu")
FP32 = Precision.from_name("fp32", CPU)
VOCABULARY, LENGTH, ROWS = 64, 32, 3


def settings(**more: Any) -> Config:
    """Configuration of a tiny model with grouped-query attention and QK norm."""
    tiny = {"hidden_dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "mlp_dim": 48, "qk_norm": True}
    return Config(**{**tiny, "max_seq_len": LENGTH, "batch_size": ROWS, "vocab_size": VOCABULARY, **more})


def decoder(config: Config) -> Decoder:
    torch.manual_seed(1)
    return Decoder(ModelConfig.from_config(config, VOCABULARY))


def batch(length: int = LENGTH, rows: int = ROWS, packed: bool = False) -> Batch:
    """Random tokens; `packed`: three documents a sequence."""
    ids = torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(length))
    labels = ids.roll(-1, 1)
    labels[:, -1] = IGNORE_INDEX
    segments = positions = None
    if packed:
        begins = torch.tensor([0, length // 3, length // 2])
        segments = (torch.searchsorted(begins, torch.arange(length), right=True) - 1).expand(rows, -1)
        positions = (torch.arange(length) - begins[segments]).contiguous()
        segments = segments.to(torch.int32).contiguous()
    return Batch(ids, labels, int((labels != IGNORE_INDEX).sum()), rows, segments=segments, positions=positions)


def compile_key(config: Config, **more: Any) -> CompileKey:
    """Key of the graph that an engine compiles for these settings."""
    shape = asdict(ModelConfig.from_config(config, VOCABULARY))
    defaults = {"rows": ROWS, "length": LENGTH, "segments": False, "varying": False, "device": "cpu"}
    return CompileKey(shape, **{**defaults, "precision": "fp32", "attention": "sdpa", "chunk": 0, "threads": 2, **more})


def build(
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
    """Builds the engine of a run of `steps` steps on a CPU. `switch`: after its switch to compiled code."""
    model, example, reporter = model or decoder(config), example or batch(), reporter or NullReporter()
    built = select.build_engine(
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
    if switch and built.switch is not None:
        try:
            built.switch.finish(example)
        finally:
            built.close()
    return built


def path(built: Engine, name: str) -> FastPath:
    return built.fast_paths[name]
