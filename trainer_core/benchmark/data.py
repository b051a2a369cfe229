"""A text to train on that is there on every machine, with a vocabulary of any size.

The built-in Python sources hold merges for some thousand tokens; a larger vocabulary is filled up with tokens that
never occur. That costs what a real one of that size does: embedding and head are as large, and so are the logits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import msgspec

from trainer_core.config import Config
from trainer_core.data.builtin import NAMES, PYTHON
from trainer_core.data.prepare import Prepared, prepare
from trainer_core.report import Reporter

_MERGED: Final = 4096  # tokens that are trained at most: more take longer, and change nothing in the speed
_SAMPLE_MIB: Final = 4


def ready(config: Config, folder: Path, reporter: Reporter) -> Config:
    """`config` with data, tokenizer and cache in `folder`, prepared. Data that a person chose stays theirs, and so do
    a tokenizer and the built-in exercises. Raises what `prepare` raises."""
    chosen = msgspec.structs.replace(config, data=config.data or [PYTHON])
    own = [path for path in chosen.data if path not in NAMES]
    if not own:
        chosen = msgspec.structs.replace(chosen, cache_dir=str(folder / "cache"))
        if not chosen.tokenizer and chosen.vocab_size > _MERGED:
            tokenizer = _filled(chosen, folder, reporter)
            chosen = msgspec.structs.replace(chosen, tokenizer=str(tokenizer))
    prepare(chosen, reporter)
    return chosen


def _filled(config: Config, folder: Path, reporter: Reporter) -> Path:
    small = {"vocab_size": _MERGED, "tokenizer_sample_mib": _SAMPLE_MIB, "cache_dir": str(folder / "small")}
    trained: Prepared = prepare(msgspec.structs.replace(config, **small), reporter)
    path = folder / "tokenizer.json"
    fill(trained.tokenizer, config.vocab_size, path)
    return path


def fill(source: Path, vocab_size: int, target: Path) -> None:
    """A tokenizer.json with tokens that never occur behind its own, `vocab_size` in all."""
    document = json.loads(source.read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    used = {*vocabulary.values(), *(token["id"] for token in document["added_tokens"])}
    vocabulary.update({f"unused-{number}": number for number in range(vocab_size) if number not in used})
    target.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
