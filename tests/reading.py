"""Files of every format for the tests, and reading them as a stream does."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer_core.data.encodings import count_replaced_bytes
from trainer_core.data.formats import FORMATS, read_rows
from trainer_core.data.readers import base, columnar, delimited, json_objects, tar
from trainer_core.data.readers.base import FileInput, SourceFile

TABLES = ("jsonl", "json", "csv", "tsv", "parquet", "arrow", "feather", "tar")


def random_bytes(size: int, seed: int = 0) -> bytes:
    """The same at every call; they cannot be compressed."""
    return random.Random(seed).randbytes(size)


def source_of(path: Path, kind: str, encoding: str = "utf-8", compression: str = "") -> SourceFile:
    kind = "arrow" if kind == "feather" else kind
    return SourceFile(path, kind, "" if FORMATS[kind].binary else encoding, path.stat().st_size, compression)


@dataclass
class Stats:
    """Counts of reading a file."""

    read: int = 0  # rows, good and bad
    bad: int = 0
    first_bad: str = ""
    reason: str = ""
    undecodable: int = 0
    position: str = ""
    done: int = 0

    def state(self) -> dict[str, Any]:
        """Counts after a row. To resume, skip `read` rows."""
        return {name: getattr(self, name) for name in ("read", "bad", "first_bad", "reason", "undecodable")}


def read(
    source: SourceFile, columns: tuple[str, ...] = (), skip: int = 0, piece: int = 64 * 1024
) -> list[dict[str, Any]]:
    """All good rows."""
    return [dict(row) for row in read_rows(FileInput(source, columns, piece, skip)) if not isinstance(row, str)]


def read_with_stats(
    source: SourceFile,
    columns: tuple[str, ...] = (),
    before: dict[str, Any] | None = None,
    piece: int = 64 * 1024,
    stats: Stats | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Stats]:
    """The rows from where a reading stopped that was in the state `before`; the state after each; the stats."""
    stats = stats or Stats(**(before or {}))
    rows, states = [], []
    file = FileInput(source, columns, piece, stats.read)
    found = read_rows(file)
    replaced_before = count_replaced_bytes() - stats.undecodable
    for row in found:
        stats.read += 1
        stats.undecodable, stats.position, stats.done = (
            count_replaced_bytes() - replaced_before,
            file.position,
            file.done,
        )
        if isinstance(row, str):
            stats.bad += 1
            stats.first_bad, stats.reason = stats.first_bad or file.position, stats.reason or row
        else:
            rows.append(dict(row))
            states.append(stats.state())
    stats.undecodable, stats.done = count_replaced_bytes() - replaced_before, file.done
    return rows, states, stats


@contextmanager
def limits(chunk: int = 64, longest: int | None = None, batch: int = 512) -> Iterator[None]:
    """Chunks, batches and the longest line so small that a short file has many."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (base, json_objects, tar):
            patch.setattr(module, "CHUNK", chunk)
        patch.setattr(columnar, "_BATCH_LIMIT", batch)
        patch.setattr(columnar, "_LARGE_BATCH_BYTES", 4 * batch)
        for module in (delimited, json_objects, tar, columnar):
            if longest is not None:
                patch.setattr(module, "MAX_ROW_BYTES", longest)
        yield


def encoded(rows: Sequence[dict[str, Any]], kind: str) -> bytes:
    """Rows, all with the same keys, as a file of a format."""
    if kind == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8")
    if kind == "json":
        return json.dumps(rows, ensure_ascii=False, indent=1).encode("utf-8")
    if kind in ("csv", "tsv"):
        return _separated(rows, "," if kind == "csv" else "\t")
    if kind == "tar":
        files = {f"a/{i:05}.json": json.dumps(row).encode() for i, row in enumerate(rows)}
        return tar_of(files)
    return columnar_file(pa.Table.from_pylist(list(rows)), kind)


def _separated(rows: Sequence[dict[str, Any]], separator: str) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]) if rows else ["text"], delimiter=separator, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode("utf-8")


def columnar_file(table: pa.Table, kind: str, rows: int = 7) -> bytes:
    """A table in groups or batches of a few rows."""
    file = io.BytesIO()
    if kind == "parquet":
        pq.write_table(table, file, row_group_size=rows)
        return file.getvalue()
    opened = pa.ipc.new_file if kind == "feather" else pa.ipc.new_stream
    with opened(file, table.schema) as writer:
        writer.write_table(table, rows)
    return file.getvalue()


def tar_of(files: dict[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of files by name."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return file.getvalue()


def compressed(content: bytes, compression: str, parts: int = 1) -> bytes:
    """The content in so many members (gzip) or frames (zstd), one after the other."""
    size = -(-len(content) // parts) or 1
    pieces = [content[i : i + size] for i in range(0, len(content), size)] or [b""]
    if compression == "gzip":
        return b"".join(gzip.compress(piece, mtime=0) for piece in pieces)
    codec = pa.Codec("zstd")
    return b"".join(codec.compress(piece, asbytes=True) for piece in pieces)
