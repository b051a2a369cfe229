"""What the data says of a run: how long it is, and what is missing of its token cache. Nothing is encoded for it.

No torch, no Qt.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.columns import Task
from trainer_core.data.insight import report as insight
from trainer_core.data.prepare import Prepared, at_hand
from trainer_core.data.store import token_type
from trainer_core.messages import TraindeckError
from trainer_core.session import Session

_LOOKED_AT: Final = 4 * 2**20  # bytes of text, of data that is not prepared: a second or two
_OF_DOCUMENT: Final = 32  # bytes in a cache beside its tokens
_EMPTY: Final = 0.5  # share of the positions of a batch that may be padding
_CUT: Final = 0.2  # share of the tokens that may be cut away
_LONG: Final = 10_000  # steps of a run of which nothing is known


@dataclass(frozen=True, slots=True)
class Data:
    """Of one run. `tokens_per_step`: a mean, padding left out."""

    task: Task
    vocab_size: int
    total_steps: int  # 0: unknown
    tokens_per_step: int
    cache_bytes: int  # that preparation will write
    filled: float = 1.0  # share of the positions that are computed which hold tokens, a mean

    @property
    def steps_to_plan_for(self) -> int:
        return self.total_steps or _LONG


def look(config: Config, session: Session) -> Data:
    """Look at the data, or at its cache where it is prepared; warn of what speaks against the run.

    Raises `TraindeckError` for data that cannot be trained on, and what `session.poll` raises.
    """
    full = config.effective_batch * config.max_seq_len
    if not config.data:
        if not config.max_steps:
            session.warn("check.no_data")
        task: Task = "sft" if config.task == "sft" else "pretrain"
        return Data(task, config.vocab_size, config.max_steps, full, 0)
    for path in (*config.data, *config.validation_data):
        if not path.startswith("builtin:") and not Path(path).exists():
            raise TraindeckError("data.not_found", path=path)
    prepared = at_hand(config, session)
    if prepared is not None:
        return of_prepared(prepared, config, session)
    report = insight.preview(config, session, _LOOKED_AT)
    vocabulary = report.vocab_size if config.tokenizer else config.vocab_size
    return _data(report, vocabulary, _cache(report, vocabulary, config), config, session)


def of_prepared(prepared: Prepared, config: Config, session: Session) -> Data:
    """The same of data that is prepared."""
    return _data(insight.of_prepared(prepared, config), prepared.vocab_size, 0, config, session)


def _cache(report: protocol.DataReport, vocabulary: int, config: Config) -> int:
    tokens = report.total.tokens if config.token_cache else report.validation_tokens
    return tokens * np.dtype(token_type(vocabulary)).itemsize + report.total.documents * _OF_DOCUMENT


def _data(report: protocol.DataReport, vocabulary: int, cache: int, config: Config, session: Session) -> Data:
    samples, limit = report.samples_per_epoch, config.max_seq_len
    if 0 < samples < config.effective_batch:
        session.warn("check.few_sequences", sequences=samples, batch=config.effective_batch)
    filled = report.tokens_per_step / max(1, config.effective_batch * limit)
    if report.task == "sft" and not config.packing and samples and filled < _EMPTY:
        session.warn("check.short_sequences", mean=round(filled * limit), limit=limit)
    if report.cut_tokens > _CUT * report.read.tokens:
        percent = round(100 * report.cut_tokens / max(1, report.read.tokens))
        session.warn("check.much_cut", percent=percent, limit=limit)
    steps = report.total_steps if samples else 0
    share = (report.fill if config.packing else report.fill_alone) or 1.0
    return Data(report.task, vocabulary, steps, report.tokens_per_step, cache, share)
