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
VALIDATION: Final = ("validation", "valid", "dev", "val", "test")  # the first one that exists is evaluated
_OF_FILE: Final = re.compile(rf"({'|'.join((TRAIN, *VALIDATION))})[-_.]")
_DATA: Final = "data"


def splits_of(folder: Path, files: Iterable[Path]) -> dict[str, list[Path]]:
    """The files of a folder by split, each in the given order; files of no split are left out."""
    found: dict[str, list[Path]] = {}
    for file in files:
        split = _split_of(file.relative_to(folder))
        if split:
            found.setdefault(split, []).append(file)
    return found


def training_split(splits: dict[str, list[Path]]) -> list[Path]:
    """The files to train on; empty: the folder is not divided into splits, so all of its files count."""
    return splits.get(TRAIN, []) if len(splits) > 1 else []


def validation_split(names: Sequence[str]) -> str:
    """The name of the split to evaluate; empty: there is none."""
    return next((name for name in VALIDATION if name in names), "")


def _split_of(relative: PurePath) -> str:
    parts = [part.lower() for part in relative.parts]
    if len(parts) > 1 and parts[0] == _DATA:
        del parts[0]
    if len(parts) > 1:
        return parts[0] if parts[0] in (TRAIN, *VALIDATION) else ""
    named = _OF_FILE.match(parts[0])
    return named[1] if named else ""
