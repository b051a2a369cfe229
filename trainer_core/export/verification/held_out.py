"""Tokens on which the perplexity of quantized weights is measured. No torch, no Qt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from trainer_core import presets, run_plan
from trainer_core.base_model.configure import apply_base_model, find_copy
from trainer_core.config import ConfigLayer
from trainer_core.data.prepare import load_if_cached
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.export.verification.answers import HeldOutRow
from trainer_core.export.verification.samples import TEXTS
from trainer_core.messages import TraindeckError
from trainer_core.progress import NullReporter
from trainer_core.runs.run_dir import RunDir

_MAX_TOKENS: Final = 512  # in the loss; each takes the other program one forward pass


def held_out_rows(checkpoint: Path, codec: Codec, window: int) -> tuple[list[HeldOutRow], bool]:
    """Up to 512 tokens in the loss of validation rows of the run, and whether there are any; else `samples.TEXTS`.

    Rows are cut to `window` tokens.
    """
    rows = _select(_validation_rows(checkpoint, codec), window)
    if rows:
        return rows, True
    texts = ([*codec.prefix_ids, *codec.encode(text)] for text in TEXTS)
    return _select(((ids, [(0, len(ids))]) for ids in texts), window), False


def _select(candidates: Iterator[tuple[list[int], list[tuple[int, int]]]], window: int) -> list[HeldOutRow]:
    rows: list[HeldOutRow] = []
    left = _MAX_TOKENS
    for ids, spans in candidates:
        places = [place for start, stop in spans for place in range(max(start, 1), min(stop, window))][:left]
        if places:
            rows.append(HeldOutRow(ids[: places[-1] + 1], places))
            left -= len(places)
        if not left:
            break
    return rows


def _validation_rows(checkpoint: Path, codec: Codec) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Token ids and the [start, stop) of those in the loss; none if the data of the run are not prepared."""
    run = RunDir(checkpoint.parent.parent)
    reporter = NullReporter()
    try:
        layers = [ConfigLayer(str(run.config), presets.read_mapping(run.config))]
        config = run_plan.build_config({"preset": None, "config_file": None}, layers)
        prepared = load_if_cached(apply_base_model(config, reporter, find_copy(run.base_model)), reporter)
    except TraindeckError:  # the data was not found
        return
    if prepared is not None and prepared.load_codec().vocab_size == codec.vocab_size:
        with contextlib.closing(prepared.open_split("validation")) as split:  # the caller may need only some rows
            spans, bounds = split.spans.tolist(), split.span_offsets.tolist()
            for document, (start, stop) in enumerate(pairwise(split.offsets.tolist())):
                in_loss = spans[bounds[document] : bounds[document + 1]] if bounds else [(0, stop - start)]
                yield split.read(start, stop).tolist(), in_loss
