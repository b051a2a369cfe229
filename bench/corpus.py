"""Text of the training benchmarks: prepared by Traindeck, with the same tokens for every trainer.

FOLDER/cache           Traindeck's own token cache
FOLDER/tokenizer.json  its tokenizer
FOLDER/train.npy       the same ids for the peers, which memory-map them
FOLDER/validation.npy
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import measure

PYTHON: Final = "builtin:python"  # the standard library's sources: about 12 MB, on every machine


@dataclass(frozen=True, slots=True)
class Corpus:
    """A prepared text. `flags`: those of Traindeck that select it."""

    folder: Path
    vocab_size: int
    train_tokens: int
    validation_tokens: int
    flags: tuple[str, ...]

    @property
    def home(self) -> dict[str, str]:
        """Environment in which Traindeck finds the cache."""
        return {"TRAINDECK_HOME": str(self.folder)}

    def document(self) -> dict[str, Any]:
        """For the JSON file."""
        counts = {"train_tokens": self.train_tokens, "validation_tokens": self.validation_tokens}
        return {"text": PYTHON, "vocab_size": self.vocab_size, **counts}


def make(folder: Path, vocab_size: int, held_out: float = 0.01) -> Corpus:
    """The standard library's sources with a tokenizer trained on them, filled with unused tokens up to `vocab_size` if
    they have too few merges."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        _tokenizer(folder, vocab_size).replace(tokenizer)
    flags = ["--data", PYTHON, "--tokenizer", str(tokenizer), "--validation-fraction", str(held_out)]
    flags += ["--cache-dir", str(folder / "cache")]
    measure.run(measure.trainer("prepare", *flags, "--output", "json"), {"TRAINDECK_HOME": str(folder)})
    found, meta = measure.finished_cache(folder / "cache")
    if meta["vocab_size"] != vocab_size:
        raise RuntimeError(f"the vocabulary has {meta['vocab_size']} tokens, not {vocab_size}")
    counts = [_export(found / split, vocab_size, folder / f"{split}.npy") for split in ("train", "validation")]
    return Corpus(folder, vocab_size, counts[0], counts[1], tuple(flags))


def _tokenizer(folder: Path, vocab_size: int) -> Path:
    """Train on the text, then fill with unused tokens."""
    cache = folder / "tokenizer-cache"
    trained = ["--data", PYTHON, "--cache-dir", str(cache), "--vocab-size", str(min(vocab_size, 8192))]
    trained += ["--tokenizer-sample-mib", "8"]
    measure.run(measure.trainer("prepare", *trained, "--output", "json"), {"TRAINDECK_HOME": str(cache)})
    found, _ = measure.finished_cache(cache)
    document = json.loads((found / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    used = {*vocabulary.values(), *(token["id"] for token in document["added_tokens"])}
    vocabulary.update({f"unused-{number}": number for number in range(vocab_size) if number not in used})
    path = folder / "filled.json"
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    measure.remove(cache)
    return path


def _export(split: Path, vocab_size: int, path: Path) -> int:
    """Save the ids of a split in the smallest type; returns their number."""
    from trainer_core.data.token_files import Split

    opened = Split(split, vocab_size)
    try:
        ids = opened.read(0, opened.tokens)
    finally:
        opened.close()
    np.save(path, ids.astype(np.uint16 if vocab_size <= 65_536 else np.uint32))
    return len(ids)
