"""Training without a token cache: rows are read from parquet files and encoded on the fly.

The cache stores the file, row and token offset of each document. `OnTheFlySplit` encodes runs of adjacent rows; samples
are shuffled in blocks, so that a run is used several times.

No torch, no Qt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer_core.data import cache
from trainer_core.data.column_mapping import ColumnMapping
from trainer_core.data.documents import extract_content, split_long_text
from trainer_core.data.encode_batch import encode_conversations
from trainer_core.data.formats import read_rows
from trainer_core.data.readers.base import FileInput, Row, SourceFile
from trainer_core.data.sources import DatasetScan
from trainer_core.data.token_files import Split
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.messages import TraindeckError

_RUN_TOKENS: Final = 512 * 1024  # tokens encoded at once, approximately
_MAX_CACHED_RUNS: Final = 12  # at most 50 MB; covers two blocks of samples

Ids = npt.NDArray[np.uint32]


def require_parquet(scans: Sequence[DatasetScan]) -> None:
    """Raises `data.needs_cache` for formats without random access."""
    for file in (file for one in scans for file in one.files):
        if file.format != "parquet":
            raise TraindeckError("data.needs_cache", path=str(file.path))


def describe_files(scans: Sequence[DatasetScan]) -> list[dict[str, Any]]:
    """`files_by_number` in meta.json: the files that `rows.bin` refers to."""
    files = [file for one in scans for file in one.files]
    return [{"path": str(file.path), "bytes": file.bytes, "columns": asdict(file.mapping)} for file in files]


class _Index(NamedTuple):
    """What the rows are read with."""

    codec: Codec
    sources: list[SourceFile]
    versions: list[list[int]]


class OnTheFlySplit(Split):
    """A split that is encoded on the fly. Pickles as its folder."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        super().__init__(folder, vocab_size)
        self._encode_cached = lru_cache(_MAX_CACHED_RUNS)(self._encode)

    def read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Tokens [start, stop). Raises `data.changed_while_read`."""
        parts = [np.zeros(0, np.uint32)]
        while start < stop:
            document = int(np.searchsorted(self.offsets, start, side="right")) - 1
            run = int(self.offsets[document]) // _RUN_TOKENS
            first, last = np.searchsorted(self.offsets[:-1], (run * _RUN_TOKENS, (run + 1) * _RUN_TOKENS)).tolist()
            begin, end = int(self.offsets[first]), int(self.offsets[last])
            parts.append(self._encode_cached(first, last)[start - begin : stop - begin])
            start = end
        return np.concatenate(parts).astype(np.int64)

    def _encode(self, first: int, last: int) -> Ids:
        """The tokens of documents [first, last)."""
        codec, sources, _ = self._index
        locations = self.row_locations[first:last]
        parts = [np.zeros(0, np.uint32)]
        for number in np.unique(locations[:, 0]).tolist():
            source, mapping = sources[number], sources[number].mapping
            rows = self._read_rows(number, locations[locations[:, 0] == number, 1].tolist())
            contents = [extract_content(row, mapping) for row in rows]
            if mapping.task != "pretrain":
                parts += [chat.ids for chat in encode_conversations(codec, contents)[0]]
                continue
            begin, end = np.array(codec.prefix_ids, np.uint32), np.array([codec.end_of_text], np.uint32)
            for text in contents:
                parts += [begin, *codec.encode_texts(split_long_text(text)), end]  # type: ignore[arg-type]
        ids = np.concatenate(parts).astype(np.uint32)
        if len(ids) != int(self.offsets[last] - self.offsets[first]):
            raise TraindeckError("data.changed_while_read", path=str(source.path))
        return ids

    def _read_rows(self, number: int, wanted: Sequence[int]) -> list[Row]:
        """Rows of file `number`. `wanted`: row numbers in ascending order."""
        source, version = self._index.sources[number], self._index.versions[number]
        remaining, found = set(wanted), []
        file = FileInput(source, source.mapping.column_names, skip_rows=wanted[0])
        try:
            if not version or cache.file_version(source.path) != version:
                raise TraindeckError("data.changed_while_read", path=str(source.path))
            for row_number, row in enumerate(read_rows(file), wanted[0]):
                if row_number in remaining and not isinstance(row, str):
                    found.append(row)
                if row_number >= wanted[-1]:
                    break
        except OSError as error:
            raise TraindeckError("data.changed_while_read", path=str(source.path)) from error
        return found

    @cached_property
    def _index(self) -> _Index:
        folder = self.folder.parent
        meta = json.loads((folder / cache.META_FILE).read_bytes())
        sources = [
            SourceFile(Path(one["path"]), "parquet", "", one["bytes"], mapping=ColumnMapping(**one["columns"]))
            for one in meta["files_by_number"]
        ]
        versions = [cache.file_version(source.path) for source in sources]
        return _Index(Codec.load(folder / "tokenizer.json", meta["fast"]), sources, versions)

    def close(self) -> None:
        self._encode_cached.cache_clear()
        super().close()
