"""Parquet files.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from trainer_core.data.encodings import ReadStats
from trainer_core.data.readers.base import ReadOptions, Row, SourceFile
from trainer_core.data.readers.columnar import iter_rows, rows_per_read, select_columns, translate_errors
from trainer_core.data.readers.streams import require_regular_file

_BUFFER_BYTES: Final = 256 * 1024  # without a limit, a column of a row group is read at once


def read_parquet(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """Rows of a Parquet file with the requested columns."""
    with translate_errors(source, stats), _open_file(source) as file:
        yield from iter_rows(_iter_batches(file, source.bytes, options), options, stats)


def parquet_columns(source: SourceFile) -> tuple[str, ...]:
    """The columns of a Parquet file, from its schema."""
    with translate_errors(source, ReadStats()), _open_file(source) as file:
        return tuple(file.schema_arrow.names)


def _open_file(source: SourceFile) -> Any:
    import pyarrow.parquet as pq  # slow to import, and not needed for text files

    require_regular_file(source.path)
    return pq.ParquetFile(
        source.path,
        memory_map=False,
        pre_buffer=False,
        buffer_size=_BUFFER_BYTES,
        page_checksum_verification=True,
    )


def _iter_batches(file: Any, size: int, options: ReadOptions) -> Iterator[tuple[Any, int]]:
    """Batches after the first `skip_rows` rows, each with the approximate number of bytes read by its end."""
    names, skip = select_columns(options.columns, file.schema_arrow.names), options.skip_rows
    total, done = max(1, file.metadata.num_rows), 0
    for group in range(file.metadata.num_row_groups):
        about = file.metadata.row_group(group)
        if skip >= about.num_rows:
            skip -= about.num_rows
            done += about.num_rows
            continue
        # Size of all columns: reading that of one column crashes on damaged files (pyarrow 26).
        rows = rows_per_read(about.total_byte_size, about.num_rows)
        for batch in file.iter_batches(rows, row_groups=[group], columns=names, use_threads=False):
            done += batch.num_rows
            yield batch.slice(skip), size * done // total
            skip = max(0, skip - batch.num_rows)
