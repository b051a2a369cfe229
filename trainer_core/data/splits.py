"""Splits of a data set folder, by the names that Hugging Face data sets use.

A file belongs to a split by its own name (`train.jsonl`, `train-00000-of-00002.parquet`, `val_zh.csv`) or by the folder
that it is in (`train/a.parquet`), directly below the data set's folder or below its `data/`.

No torch, no Qt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Final

TRAIN: Final = "train"
VALIDATION_NAMES: Final = ("validation", "valid", "dev", "val", "test")  # the first one that exists is evaluated
_SPLIT_PREFIX: Final = re.compile(rf"({'|'.join((TRAIN, *VALIDATION_NAMES))})[-_.]")
_DATA_FOLDER: Final = "data"


def group_by_split(folder: Path, files: Iterable[Path]) -> dict[str, list[Path]]:
    """The files of a folder by split, each in the given order; files of no split are left out."""
    found: dict[str, list[Path]] = {}
    for file in files:
        split = _split_name(file.relative_to(folder))
        if split:
            found.setdefault(split, []).append(file)
    return found


def training_files(splits: dict[str, list[Path]]) -> list[Path]:
    """The files to train on; empty: the folder is not divided into splits, so all of its files count."""
    return splits.get(TRAIN, []) if len(splits) > 1 else []


def choose_validation_split(names: Sequence[str]) -> str:
    """The name of the split to evaluate; empty: there is none."""
    return next((name for name in VALIDATION_NAMES if name in names), "")


def _split_name(relative: PurePath) -> str:
    parts = [part.lower() for part in relative.parts]
    if len(parts) > 1 and parts[0] == _DATA_FOLDER:
        del parts[0]
    if len(parts) > 1:
        return parts[0] if parts[0] in (TRAIN, *VALIDATION_NAMES) else ""
    named = _SPLIT_PREFIX.match(parts[0])
    return named[1] if named else ""
