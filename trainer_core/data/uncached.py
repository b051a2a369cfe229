"""Training without a token cache: rows are read from parquet files and encoded on the fly.

The cache stores the file, row and token offset of each document. `OnTheFlySplit` encodes runs of adjacent rows; samples
are shuffled in blocks, so that a run is used several times.

No torch, no Qt.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainer_core.data import columns
from trainer_core.data.cache import file_version
from trainer_core.data.columns import ColumnMapping
from trainer_core.data.documents import split_long_text
from trainer_core.data.encodings import ReadStats
from trainer_core.data.formats import FORMATS
from trainer_core.data.readers.base import ReadOptions, Row, SourceFile
from trainer_core.data.sources import DatasetScan
from trainer_core.data.token_files import Split
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.messages import TraindeckError

SHUFFLE_BLOCK_SIZE: Final = 2048  # samples
_RUN_TOKENS: Final = 512 * 1024  # tokens encoded at once, approximately
_MAX_CACHED_RUNS: Final = 12  # at most 50 MB; covers two blocks of samples
_INDEX_FILE: Final = "sources.json"

Ids = npt.NDArray[np.uint32]


def require_parquet(scans: Sequence[DatasetScan]) -> None:
    """Raises `data.needs_cache` for formats without random access."""
    for file in (file for one in scans for file in one.files):
        if file.format != "parquet":
            raise TraindeckError("data.needs_cache", path=str(file.path))


def write_index(folder: Path, scans: Sequence[DatasetScan], fast: bool) -> None:
    """Store the files, their column mappings, and whether gigatoken may be used."""
    files = [
        {"path": str(file.path), "bytes": file.bytes, "columns": asdict(file.mapping)}
        for one in scans
        for file in one.files
    ]
    (folder / _INDEX_FILE).write_text(json.dumps({"fast": fast, "files": files}), encoding="utf-8")


class OnTheFlySplit(Split):
    """A split that is encoded on the fly. Pickles as its folder."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        super().__init__(folder, vocab_size)
        self._codec: Codec | None = None
        self._sources: list[SourceFile] = []
        self._versions: list[list[int]] = []
        self._cached_runs: OrderedDict[int, Ids] = OrderedDict()

    def __getstate__(self) -> Any:
        return self.folder, self._vocab_size

    def read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Tokens [start, stop). Raises `data.changed_while_read`."""
        parts = [np.zeros(0, np.uint32)]
        while start < stop:
            document = int(np.searchsorted(self.offsets, start, side="right")) - 1
            run = int(self.offsets[document]) // _RUN_TOKENS
            first, last = np.searchsorted(self.offsets[:-1], (run * _RUN_TOKENS, (run + 1) * _RUN_TOKENS)).tolist()
            begin, end = int(self.offsets[first]), int(self.offsets[last])
            parts.append(self._load_run(run, first, last)[start - begin : stop - begin])
            start = end
        return np.concatenate(parts).astype(np.int64)

    def _load_run(self, run: int, first: int, last: int) -> Ids:
        """The tokens of documents [first, last), cached by run."""
        if run not in self._cached_runs:
            self._cached_runs[run] = self._encode(first, last)
            if len(self._cached_runs) > _MAX_CACHED_RUNS:
                self._cached_runs.popitem(last=False)
        self._cached_runs.move_to_end(run)
        return self._cached_runs[run]

    def _encode(self, first: int, last: int) -> Ids:
        codec = self._load_index()
        locations = self.row_locations[first:last]
        parts = [np.zeros(0, np.uint32)]
        for number in np.unique(locations[:, 0]).tolist():
            source = self._sources[number]
            mapping = source.mapping
            rows = self._read_rows(number, locations[locations[:, 0] == number, 1].tolist())
            if mapping.task == "sft":
                chats = codec.encode_chats([columns.extract_turns(row, mapping) for row in rows])
                parts += [chat.ids for chat in chats]
                continue
            begin, end = np.array(codec.prefix_ids, np.uint32), np.array([codec.end_of_text], np.uint32)
            for row in rows:
                parts += [begin, *codec.encode_texts(split_long_text(columns.extract_text(row, mapping))), end]
        ids = np.concatenate(parts).astype(np.uint32)
        if len(ids) != int(self.offsets[last] - self.offsets[first]):
            raise TraindeckError("data.changed_while_read", path=str(source.path))
        return ids

    def _read_rows(self, number: int, wanted: Sequence[int]) -> list[Row]:
        """Rows of file `number`. `wanted`: row numbers in ascending order."""
        source = self._sources[number]
        stats, remaining, found = ReadStats(), set(wanted), []
        stats.read = wanted[0]
        try:
            if not self._versions[number] or file_version(source.path) != self._versions[number]:
                raise TraindeckError("data.changed_while_read", path=str(source.path))
            options = ReadOptions(source.mapping.column_names, skip_rows=wanted[0])
            for row in FORMATS[source.format].read(source, options, stats):
                if stats.read - 1 in remaining:
                    found.append(row)
                if stats.read > wanted[-1]:
                    break
        except OSError as error:
            raise TraindeckError("data.changed_while_read", path=str(source.path)) from error
        return found

    def _load_index(self) -> Codec:
        if self._codec is None:
            folder = self.folder.parent
            index = json.loads((folder / _INDEX_FILE).read_text(encoding="utf-8"))
            for one in index["files"]:
                mapping = ColumnMapping(**one["columns"])
                source = SourceFile(Path(one["path"]), "parquet", "", one["bytes"], mapping=mapping)
                self._sources.append(source)
                self._versions.append(file_version(source.path))
            self._codec = Codec.load(folder / "tokenizer.json", index["fast"])
        return self._codec

    def close(self) -> None:
        self._cached_runs.clear()
        super().close()
