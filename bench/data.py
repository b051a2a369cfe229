"""Tokenizers and token caches of the benchmarks, made by Traindeck's real `prepare`.

A `home` is Traindeck's folder: HOME/cache holds one token cache. The training benchmarks use the standard library's
sources, which every machine has; their peers read the token files of the same cache.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from app.core import command_line
from bench import processes
from trainer_core.config import Config
from trainer_core.data.token_files import SPLITS, Split

_LIBRARY: Final = "builtin:python"  # about 12 MB
_MAX_TRAINED_VOCAB: Final = 8192
_TOKENIZER: Final = "tokenizer.json"


def prepare(home: Path, knobs: Mapping[str, Any], sample_memory: bool = False) -> processes.Finished:
    arguments = command_line.config_arguments(None, knobs, knobs["data"])
    command = processes.python("trainer_core", "prepare", *arguments, "--output", "json")
    return processes.run(command, {"TRAINDECK_HOME": str(home)}, sample_memory=sample_memory)


def read_meta(home: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of the only token cache, and its metadata."""
    (meta,) = (home / "cache").glob("*/meta.json")
    return meta.parent, json.loads(meta.read_bytes())


def open_splits(home: Path) -> dict[str, Split]:
    folder, meta = read_meta(home)
    return {name: Split(folder / name, meta["vocab_size"]) for name in SPLITS}


def count(home: Path) -> dict[str, int]:
    """Documents and tokens of both splits."""
    splits = open_splits(home).values()
    return {name: sum(getattr(split, name) for split in splits) for name in ("documents", "tokens")}


def train_tokenizer(home: Path, data: str, vocab_size: int, sample_mib: int) -> Path:
    """Train a tokenizer on data. Returns the path of its tokenizer.json in `home`."""
    temporary = home / "tokenizer-training"
    prepare(temporary, {"data": [data], "vocab_size": vocab_size, "tokenizer_sample_mib": sample_mib})
    folder, _ = read_meta(temporary)
    tokenizer = (folder / _TOKENIZER).replace(home / _TOKENIZER)
    shutil.rmtree(temporary)
    return tokenizer


def prepare_library(home: Path, config: Config) -> Config:
    """Prepare the standard library's sources. Returns the configuration with this data."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / _TOKENIZER).exists():
        tokenizer = train_tokenizer(home, _LIBRARY, min(config.vocab_size, _MAX_TRAINED_VOCAB), sample_mib=8)
        _add_unused_tokens(tokenizer, config.vocab_size)
    knobs = {"data": [_LIBRARY], "tokenizer": str(home / _TOKENIZER), "validation_fraction": 0.01}
    prepare(home, knobs)
    return replace(config, **knobs)


def _add_unused_tokens(tokenizer: Path, vocab_size: int) -> None:
    document = json.loads(tokenizer.read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    used = {*vocabulary.values(), *(token["id"] for token in document["added_tokens"])}
    vocabulary.update({f"unused-{number}": number for number in range(vocab_size) if number not in used})
    tokenizer.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def home_of(config: Config) -> Path:
    """The folder of the tokenizer or of the base model's folder, such as the one given to `prepare_library`."""
    return Path(config.base_model or config.tokenizer).parent
