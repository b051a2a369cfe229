"""Training without its tokens on disk: rows are read from their parquet files and encoded when they are needed.

What is kept of each document is where it stands: its file, its row, and where its tokens would begin.
`DirectSplit` reads like `Split`; what it is asked for, it encodes anew, a run of neighbouring rows at a
time. So that neighbours are asked for together, samples are shuffled in blocks (`order.Plan.block`).

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
from trainer_core.data.columns import Layout
from trainer_core.data.encodings import Tally
from trainer_core.data.formats import FORMATS, Request, Row, Source
from trainer_core.data.sources import Look
from trainer_core.data.store import Split
from trainer_core.data.stream import parts_of
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.messages import TraindeckError

BLOCK: Final = 2048  # samples that are shuffled among themselves; their rows stand close together
_RUN_TOKENS: Final = 512 * 1024  # documents that begin within so many tokens are encoded together
_RUNS_KEPT: Final = 12  # more than the samples of two blocks touch, and at most 50 MB
_INDEX: Final = "sources.json"

Ids = npt.NDArray[np.uint32]


def check(looks: Sequence[Look]) -> None:
    """Raises `data.needs_cache` for data in which rows cannot be looked up."""
    for file in (file for one in looks for file in one.files):
        if file.format != "parquet":
            raise TraindeckError("data.needs_cache", path=str(file.path))


def write_index(folder: Path, looks: Sequence[Look], fast: bool) -> None:
    """Keep which files the rows are in, how they are read, and whether gigatoken may encode them."""
    files = [
        {"path": str(file.path), "bytes": file.bytes, "layout": asdict(layout)}
        for one in looks
        for file, layout in zip(one.files, one.layouts, strict=True)
    ]
    (folder / _INDEX).write_text(json.dumps({"fast": fast, "files": files}), encoding="utf-8")


def _version(path: Path) -> list[int]:
    """Size and time of change; empty for a file that is gone."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


class DirectSplit(Split):
    """A split whose tokens are not on disk. Pickles as its folder; reads its files at first use."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        super().__init__(folder, vocab_size)
        self._codec: Codec | None = None
        self._sources: list[tuple[Source, Layout]] = []
        self._versions: list[list[int]] = []
        self._runs: OrderedDict[int, Ids] = OrderedDict()

    def __getstate__(self) -> Any:
        return self.folder, self._vocab_size

    def read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Tokens [start, stop) as int64. Raises `data.changed_while_read` where rows are not what they were."""
        parts = [np.zeros(0, np.uint32)]
        while start < stop:
            document = int(np.searchsorted(self.offsets, start, side="right")) - 1
            run = int(self.offsets[document]) // _RUN_TOKENS
            first, last = np.searchsorted(self.offsets[:-1], (run * _RUN_TOKENS, (run + 1) * _RUN_TOKENS)).tolist()
            begin, end = int(self.offsets[first]), int(self.offsets[last])
            parts.append(self._run(run, first, last)[start - begin : stop - begin])
            start = end
        return np.concatenate(parts).astype(np.int64)

    def _run(self, run: int, first: int, last: int) -> Ids:
        """The tokens of documents [first, last): of the newest runs, or encoded now."""
        if run not in self._runs:
            self._runs[run] = self._encode(first, last)
            if len(self._runs) > _RUNS_KEPT:
                self._runs.popitem(last=False)
        self._runs.move_to_end(run)
        return self._runs[run]

    def _encode(self, first: int, last: int) -> Ids:
        self._open()
        assert self._codec is not None
        places = self.places[first:last]
        parts: list[Ids] = []
        for number in np.unique(places[:, 0]).tolist():
            source, layout = self._sources[number]
            self._check(number)
            rows = self._rows(source, layout, places[places[:, 0] == number, 1].tolist())
            if layout.task == "sft":
                parts += [
                    chat.ids for chat in self._codec.encode_chats([columns.turns_of(row, layout) for row in rows])
                ]
            else:
                begin, end = (np.array(ids, np.uint32) for ids in (self._codec.prefix, [self._codec.end_of_text]))
                for row in rows:
                    parts += [begin, *self._codec.encode_texts(parts_of(columns.text_of(row, layout))), end]
        ids = np.concatenate([np.zeros(0, np.uint32), *parts]).astype(np.uint32)
        if len(ids) != int(self.offsets[last] - self.offsets[first]):
            raise TraindeckError("data.changed_while_read", path=str(source.path))
        return ids

    def _check(self, number: int) -> None:
        path = self._sources[number][0].path
        if not self._versions[number] or _version(path) != self._versions[number]:
            raise TraindeckError("data.changed_while_read", path=str(path))

    @staticmethod
    def _rows(source: Source, layout: Layout, wanted: Sequence[int]) -> list[Row]:
        """The rows with these numbers, which rise. The file is opened, and closed again."""
        tally, left, found = Tally(), set(wanted), []
        tally.read = wanted[0]
        try:
            for row in FORMATS[source.format].read(source, Request(layout.used, skip=wanted[0]), tally):
                if tally.read - 1 in left:
                    found.append(row)
                if tally.read > wanted[-1]:
                    break
        except OSError as error:
            raise TraindeckError("data.changed_while_read", path=str(source.path)) from error
        return found

    def _open(self) -> None:
        if self._codec is None:
            folder = self.folder.parent
            index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
            for one in index["files"]:
                source = Source(Path(one["path"]), "parquet", "", one["bytes"])
                self._sources.append((source, Layout(**one["layout"])))
                self._versions.append(_version(source.path))  # as `prepare` has found it just now
            self._codec = Codec.load(folder / "tokenizer.json", index["fast"])

    def close(self) -> None:
        self._runs.clear()
        super().close()
