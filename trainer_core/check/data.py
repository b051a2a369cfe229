"""Inspects the data, or its token cache, for the length of a run. Only a sample is encoded.

No torch, no Qt.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.column_mapping import Task
from trainer_core.data.prepare import PreparedData, load_if_cached
from trainer_core.data.report import report as insight
from trainer_core.data.token_files import token_dtype
from trainer_core.messages import TraindeckError
from trainer_core.run_context import RunContext

_SAMPLE_LIMIT: Final = 4 * 2**20  # bytes of text read from data that are not prepared; takes a second or two
_DOCUMENT_BYTES: Final = 32  # in a token cache, in addition to its tokens
_MIN_FILL: Final = 0.5  # of a batch's positions
_MAX_TRUNCATED: Final = 0.2  # share of all tokens
_DEFAULT_STEPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class DataRequirements:
    """Properties of a run that depend on the data."""

    task: Task
    vocab_size: int
    total_steps: int  # 0: unknown
    tokens_per_step: int  # mean, without padding
    cache_bytes: int  # that preparation will write
    fill: float = 1.0  # mean share of the computed positions that hold tokens
    sides: int = 0  # see `PreparedData.sides`

    @property
    def planned_steps(self) -> int:
        return self.total_steps or _DEFAULT_STEPS


def inspect_data(config: Config, context: RunContext) -> DataRequirements:
    """Inspect a sample of the data, or their token cache if it exists, and warn of unsuitable settings.

    Raises `TraindeckError` for unusable data, and what `context.poll` raises.
    """
    if not config.data:
        if not config.max_steps:
            context.warn("check.no_data")
        task: Task = "sft" if config.task == "sft" or config.uses_rewards else "pretrain"
        task = "preference" if config.uses_preferences else task
        sides = 2 * config.uses_preferences
        tokens = config.effective_batch * config.max_seq_len * max(1, sides)
        return DataRequirements(task, config.vocab_size, config.max_steps, tokens, 0, sides=sides)
    for path in (*config.data, *config.validation_data):
        if not path.startswith("builtin:") and not Path(path).exists():
            raise TraindeckError("data.not_found", path=path)
    prepared = load_if_cached(config, context)
    if prepared is not None:
        return from_prepared(prepared, config, context)
    report = insight.preview(config, context, _SAMPLE_LIMIT)
    vocab_size = report.vocab_size if config.tokenizer else config.vocab_size
    tokens = report.total.tokens if config.token_cache else report.validation_tokens
    cache_bytes = tokens * np.dtype(token_dtype(vocab_size)).itemsize + report.total.documents * _DOCUMENT_BYTES
    return _requirements(report, vocab_size, cache_bytes, config, context)


def from_prepared(prepared: PreparedData, config: Config, context: RunContext) -> DataRequirements:
    """Inspect prepared data."""
    return _requirements(insight.report_prepared_data(prepared, config), prepared.vocab_size, 0, config, context)


def _requirements(
    report: protocol.DataReport, vocab_size: int, cache_bytes: int, config: Config, context: RunContext
) -> DataRequirements:
    sides = report.preference.sides if report.preference else 0
    samples, limit = report.samples_per_epoch, config.max_seq_len * max(1, sides)
    if 0 < samples < config.effective_batch:
        context.warn("check.few_sequences", sequences=samples, batch=config.effective_batch)
    filled = report.tokens_per_step / max(1, config.effective_batch * limit)
    can_pack = report.task != "pretrain" and not config.packing and config.objective != "grpo"
    if can_pack and samples and filled < _MIN_FILL:
        context.warn("check.short_sequences", mean=round(filled * limit), limit=limit)
    if report.truncated_tokens > _MAX_TRUNCATED * report.read.tokens:
        percent = round(100 * report.truncated_tokens / max(1, report.read.tokens))
        context.warn("check.much_cut", percent=percent, limit=config.max_seq_len)
    return DataRequirements(
        task=report.task,
        vocab_size=vocab_size,
        total_steps=report.total_steps if samples else 0,
        tokens_per_step=report.tokens_per_step,
        cache_bytes=cache_bytes,
        fill=(report.fill if config.packing else report.fill_unpacked) or 1.0,
        sides=sides,
    )
