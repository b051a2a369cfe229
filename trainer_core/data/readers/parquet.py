"""Parquet files.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from trainer_core.data.encodings import Tally
from trainer_core.data.readers.base import Request, Row, Source
from trainer_core.data.readers.columnar import plain_errors, rows_at_once, rows_of, wanted
from trainer_core.data.readers.streams import check_regular

_BUFFER: Final = 256 * 1024  # bytes read at once; without it a whole column of a row group is


def read_parquet(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """The rows of a parquet file, with only the columns asked for."""
    with plain_errors(source, tally), _opened(source) as file:
        yield from rows_of(_batches(file, source.bytes, request), request, tally)


def parquet_columns(source: Source) -> tuple[str, ...]:
    """The columns of a parquet file, from its schema alone."""
    with plain_errors(source, Tally()), _opened(source) as file:
        return tuple(file.schema_arrow.names)


def _opened(source: Source) -> Any:
    import pyarrow.parquet as pq  # here: the window looks at text files without paying for it

    check_regular(source.path)
    return pq.ParquetFile(
        source.path,
        memory_map=False,
        pre_buffer=False,
        buffer_size=_BUFFER,
        page_checksum_verification=True,  # where the file has checksums
    )


def _batches(file: Any, size: int, request: Request) -> Iterator[tuple[Any, int]]:
    """Batches after the first `request.skip` rows, each with the byte of the file after it, near enough."""
    names, skip = wanted(request.columns, file.schema_arrow.names), request.skip
    total, done = max(1, file.metadata.num_rows), 0
    for group in range(file.metadata.num_row_groups):
        about = file.metadata.row_group(group)
        if skip >= about.num_rows:
            skip -= about.num_rows
            done += about.num_rows
            continue
        # Of all columns, for to ask for one's size ends the process where the file is damaged (pyarrow 26).
        rows = rows_at_once(about.total_byte_size, about.num_rows)
        for batch in file.iter_batches(rows, row_groups=[group], columns=names, use_threads=False):
            done += batch.num_rows
            yield batch.slice(skip), size * done // total
            skip = max(0, skip - batch.num_rows)
