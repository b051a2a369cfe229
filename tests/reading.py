"""Test files in every data format, and functions that read their rows."""

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
    """Incompressible bytes, the same at every call."""
    return random.Random(seed).randbytes(size)


def source_file(path: Path, kind: str, encoding: str = "utf-8", compression: str = "") -> SourceFile:
    kind = "arrow" if kind == "feather" else kind
    return SourceFile(path, kind, "" if FORMATS[kind].binary else encoding, path.stat().st_size, compression)


@dataclass
class Stats:
    """Counts after some rows of a file."""

    read: int = 0  # rows, good and bad
    bad: int = 0
    first_bad: str = ""
    reason: str = ""
    undecodable: int = 0
    position: str = ""
    done: int = 0  # bytes of the file on disk

    def state(self) -> dict[str, Any]:
        """Fields that a resumed read continues from."""
        return {name: getattr(self, name) for name in ("read", "bad", "first_bad", "reason", "undecodable")}


def read(
    source: SourceFile, columns: tuple[str, ...] = (), skip: int = 0, piece: int = 64 * 1024
) -> list[dict[str, Any]]:
    """Return the good rows after the first `skip` rows."""
    return [dict(row) for row in read_rows(FileInput(source, columns, piece, skip)) if not isinstance(row, str)]


def read_with_stats(
    source: SourceFile,
    columns: tuple[str, ...] = (),
    before: dict[str, Any] | None = None,
    piece: int = 64 * 1024,
    stats: Stats | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Stats]:
    """Return the good rows after the state `before`, the state after each of them, and the final counts."""
    stats = stats or Stats(**(before or {}))
    rows, states = [], []
    file = FileInput(source, columns, piece, stats.read)
    remaining_rows = read_rows(file)  # decodes the skipped rows, whose replaced bytes `before` includes
    replaced_before = count_replaced_bytes() - stats.undecodable
    for row in remaining_rows:
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
def reader_limits(chunk: int = 64, max_row_bytes: int | None = None, batch: int = 512) -> Iterator[None]:
    """Set the sizes of chunks, of the longest row and of batches, so that a short file has many of them."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (base, json_objects, tar):
            patch.setattr(module, "CHUNK", chunk)
        patch.setattr(columnar, "_BATCH_LIMIT", batch)
        patch.setattr(columnar, "_LARGE_BATCH_BYTES", 4 * batch)
        for module in (delimited, json_objects, tar, columnar):
            if max_row_bytes is not None:
                patch.setattr(module, "MAX_ROW_BYTES", max_row_bytes)
        yield


def encode_rows(rows: Sequence[dict[str, Any]], kind: str) -> bytes:
    """Encode rows with identical keys as a file of format `kind`."""
    if kind == "jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8")
    if kind == "json":
        return json.dumps(rows, ensure_ascii=False, indent=1).encode("utf-8")
    if kind in ("csv", "tsv"):
        return _encode_csv(rows, "," if kind == "csv" else "\t")
    if kind == "tar":
        files = {f"a/{i:05}.json": json.dumps(row).encode() for i, row in enumerate(rows)}
        return tar_archive(files)
    return columnar_file(pa.Table.from_pylist(list(rows)), kind)


def _encode_csv(rows: Sequence[dict[str, Any]], separator: str) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, list(rows[0]) if rows else ["text"], delimiter=separator, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode("utf-8")


def columnar_file(table: pa.Table, kind: str, rows: int = 7) -> bytes:
    """Encode a table in row groups or batches of `rows` rows."""
    file = io.BytesIO()
    if kind == "parquet":
        pq.write_table(table, file, row_group_size=rows)
        return file.getvalue()
    open_writer = pa.ipc.new_file if kind == "feather" else pa.ipc.new_stream
    with open_writer(file, table.schema) as writer:
        writer.write_table(table, rows)
    return file.getvalue()


def tar_archive(files: dict[str, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    """Return a tar archive of `files`, by name."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def compress(content: bytes, compression: str, parts: int = 1) -> bytes:
    """Compress `content` as `parts` consecutive gzip members or zstd frames."""
    size = -(-len(content) // parts) or 1
    pieces = [content[i : i + size] for i in range(0, len(content), size)] or [b""]
    if compression == "gzip":
        return b"".join(gzip.compress(piece, mtime=0) for piece in pieces)
    codec = pa.Codec("zstd")
    return b"".join(codec.compress(piece, asbytes=True) for piece in pieces)
