"""Converts pyarrow batches to rows, for Parquet and Arrow files.

pyarrow is imported in functions: it is slow to import, and not needed for text files.
No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from trainer_core.data.encodings import ReadStats, TextDecoder
from trainer_core.data.readers.base import MAX_ROW_BYTES, TOO_LONG, ReadOptions, Row, SourceFile, bad_format_error

_MAX_ROWS: Final = 256  # rows in memory at once
_BATCH_LIMIT: Final = 4 * 1024 * 1024  # bytes in memory at once, by the average row size
_LARGE_BATCH_BYTES: Final = 16 * 1024 * 1024  # the rows of larger batches are converted one by one
_CONVERSION_ERRORS: Final = (ValueError, OverflowError)  # values without Python equivalent
_NOT_A_TABLE_ERRORS: Final = ("Parquet magic bytes not found", "Parquet file size is", "Not an Arrow file")
_ZIP_MAGIC: Final = b"PK\x03\x04"


def select_columns(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    return [name for name in columns if name in names] if columns else list(names)


def rows_per_read(size: int, rows: int) -> int:
    """Number of rows to convert at once of a batch or row group of `size` bytes."""
    return max(1, min(_MAX_ROWS, _BATCH_LIMIT * rows // max(1, size)))


def iter_rows(batches: Iterator[tuple[Any, int]], options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """The rows of batches, each of which comes with the number of bytes read by its end."""
    stats.unit = "row"
    number = options.skip_rows
    for batch, done in batches:
        for row in _iter_batch_rows(batch, stats):
            number += 1
            stats.number = number
            stats.read += 1
            if isinstance(row, str):
                stats.record_bad_row(stats.position, row)
            else:
                yield row
        stats.advance(done)


def _iter_batch_rows(batch: Any, stats: ReadStats) -> Iterator[Row | str]:
    """The rows of a batch, or why a row is bad."""
    if batch.num_rows > 1 and batch.nbytes > min(_LARGE_BATCH_BYTES, MAX_ROW_BYTES):
        return _iter_single_rows(batch, stats)
    if batch.nbytes > MAX_ROW_BYTES:
        return iter([TOO_LONG])
    try:
        return _decode_batch(batch, stats)
    except _CONVERSION_ERRORS:
        pass
    try:
        return _decode_batch(strings_as_binary(batch), stats)
    except _CONVERSION_ERRORS as error:  # in a nested value
        return _iter_single_rows(batch, stats) if batch.num_rows > 1 else iter([_first_line(error)])


def _iter_single_rows(batch: Any, stats: ReadStats) -> Iterator[Row | str]:
    for row in range(batch.num_rows):
        yield from _iter_batch_rows(batch.slice(row, 1), stats)


def strings_as_binary(batch: Any) -> Any:
    """The batch with strings as bytes, without copying."""
    import pyarrow as pa

    kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    columns = [column.cast(kinds.get(column.type, column.type)) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _decode_batch(batch: Any, stats: ReadStats) -> Iterator[Row]:
    """The rows, with bytes decoded as UTF-8. Raises `_CONVERSION_ERRORS`."""
    import pyarrow as pa

    kinds = (pa.binary(), pa.large_binary())
    names = [field.name for field in batch.schema if field.type in kinds]
    rows: list[dict[str, Any]] = batch.to_pylist()
    return _decode_columns(rows, names, stats) if names else iter(rows)


def _decode_columns(rows: list[dict[str, Any]], names: list[str], stats: ReadStats) -> Iterator[Row]:
    for row in rows:
        for name in names:
            if row[name] is not None:
                decoder = TextDecoder("utf-8")
                row[name] = decoder.decode(row[name], final=True)
                stats.undecodable += decoder.undecodable
        yield row


@contextmanager
def translate_errors(source: SourceFile, stats: ReadStats) -> Iterator[None]:
    """Translate errors of pyarrow to `data.bad_format`. Errors of the system are raised as they are."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        position = f"row {stats.read + 1}" if stats.read else "its beginning"
        raise bad_format_error(source, position, _format_reason(source, _first_line(error))) from error


def _format_reason(source: SourceFile, reason: str) -> str:
    """The reason in plain words if the file is not a table at all."""
    if not reason.startswith(_NOT_A_TABLE_ERRORS):
        return reason
    with source.path.open("rb") as file:
        is_zip = file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC
    return "it is a zip archive; unpack it" if is_zip else "its end is missing, or it is a file of another kind"


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
