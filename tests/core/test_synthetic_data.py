"""Synthetic data of a check: full batches of the longest sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from trainer_core.config import Config
from trainer_core.data import synthetic_data
from trainer_core.data.loader import BatchLoader

LENGTH, ROWS = 33, 3


@pytest.mark.parametrize(
    ("task", "knobs", "has_segments"),
    [
        ("pretrain", {}, False),
        ("pretrain", {"attend_across_documents": False}, True),
        ("sft", {}, False),
        ("sft", {"packing": True}, True),
    ],
)
@pytest.mark.parametrize("rows", [1, ROWS])
def test_synthetic_batches_have_the_maximum_size(
    tmp_path: Path, task: Literal["pretrain", "sft"], knobs: dict[str, Any], has_segments: bool, rows: int
) -> None:
    config = Config(batch_size=rows, max_seq_len=LENGTH, **knobs)
    prepared = synthetic_data.build_synthetic_cache(tmp_path, config, task, 70_000, 2 * rows)
    for split, batches in (("train", 2), ("validation", 1)):
        loader = BatchLoader(prepared, config, split)  # type: ignore[arg-type]
        loaded = list(loader.iterate_samples(np.arange(loader.samples)))
        assert len(loaded) == batches
        for batch in loaded:
            assert batch.input_ids.shape == (rows, LENGTH)
            assert (batch.segments is not None) == has_segments
            # No document predicts the first token of the next.
            assert batch.loss_tokens >= rows * (LENGTH - 2 * has_segments)
            assert batch.input_ids.max() >= 60_000
        loader.close()
