"""Parquet and Arrow IPC files: streams (Hugging Face data sets) and files with an index (Feather).

pyarrow is imported in functions: it is slow to import, and not needed for text files.
No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from trainer_core.data.encodings import ReadStats, TextDecoder
from trainer_core.data.readers.base import (
    MAX_ROW_BYTES,
    TOO_LONG,
    ReadOptions,
    Row,
    SourceFile,
    bad_format_error,
    require_regular_file,
)

_MAX_ROWS: Final = 256  # rows in memory at once
_BATCH_LIMIT: Final = 4 * 1024 * 1024  # bytes in memory at once, by the average row size
_LARGE_BATCH_BYTES: Final = 16 * 1024 * 1024  # the rows of larger batches are converted one by one
_BUFFER_BYTES: Final = 256 * 1024  # without a limit, a column of a Parquet row group is read at once
_CONVERSION_ERRORS: Final = (ValueError, OverflowError)  # values without Python equivalent
_NOT_A_TABLE_ERRORS: Final = ("Parquet magic bytes not found", "Parquet file size is", "Not an Arrow file")
_ZIP_MAGIC: Final = b"PK\x03\x04"


def read_parquet(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """Rows of a Parquet file with the requested columns."""
    with _translate_errors(source, stats), _open_parquet(source) as file:
        yield from _iter_rows(_iter_parquet_batches(file, source.bytes, options), options, stats)


def parquet_columns(source: SourceFile) -> tuple[str, ...]:
    """The columns of a Parquet file, from its schema."""
    with _translate_errors(source, ReadStats()), _open_parquet(source) as file:
        return tuple(file.schema_arrow.names)


def read_arrow(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """Rows of an Arrow file with the requested columns."""
    with _translate_errors(source, stats), _map_file(source) as file:
        yield from _iter_rows(_iter_arrow_slices(file, source, options), options, stats)


def arrow_columns(source: SourceFile) -> tuple[str, ...]:
    """The columns of an Arrow file, from its schema."""
    with _translate_errors(source, ReadStats()), _map_file(source) as file:
        return tuple(_open_arrow(file).schema.names)


# --- batches, each with the approximate number of bytes read by its end ----------------------------


def _open_parquet(source: SourceFile) -> Any:
    import pyarrow.parquet as pq

    require_regular_file(source.path)
    options = {"memory_map": False, "pre_buffer": False, "page_checksum_verification": True}
    return pq.ParquetFile(source.path, buffer_size=_BUFFER_BYTES, **options)


def _iter_parquet_batches(file: Any, size: int, options: ReadOptions) -> Iterator[tuple[Any, int]]:
    names, skip = _select_columns(options.columns, file.schema_arrow.names), options.skip_rows
    total, done = max(1, file.metadata.num_rows), 0
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        if skip >= group.num_rows:
            skip -= group.num_rows
            done += group.num_rows
            continue
        # Size of all columns: reading that of one column crashes on damaged files (pyarrow 26).
        rows = _rows_per_read(group.total_byte_size, group.num_rows)
        for batch in file.iter_batches(rows, row_groups=[number], columns=names, use_threads=False):
            done += batch.num_rows
            yield batch.slice(skip), size * done // total
            skip = max(0, skip - batch.num_rows)


def _map_file(source: SourceFile) -> Any:
    """Maps the file into memory, since one batch may be larger than memory."""
    import pyarrow as pa

    require_regular_file(source.path)
    return pa.memory_map(str(source.path))


def _open_arrow(file: Any) -> Any:
    """A stream reader, or a file reader if the file has an index."""
    import pyarrow as pa

    has_index = file.read(6) == b"ARROW1"
    file.seek(0)
    return pa.ipc.open_file(file) if has_index else pa.ipc.open_stream(file)


def _iter_arrow_batches(file: Any) -> Iterator[tuple[Any, int]]:
    reader = _open_arrow(file)
    if not hasattr(reader, "num_record_batches"):
        yield from ((batch, file.tell()) for batch in reader)
        return
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number), file.size() * (number + 1) // reader.num_record_batches


def _iter_arrow_slices(file: Any, source: SourceFile, options: ReadOptions) -> Iterator[tuple[Any, int]]:
    import pyarrow as pa

    skip, start = options.skip_rows, 0
    for batch, end in _iter_arrow_batches(file):
        names = batch.schema.names
        batch = batch.select([names.index(name) for name in _select_columns(options.columns, names)])
        rows = _rows_per_read(end - start, batch.num_rows)
        for row in range(skip, batch.num_rows, rows):
            if source.path.stat().st_size < source.bytes:  # reading a mapped file beyond its end kills the process
                raise pa.ArrowInvalid("the file became shorter while it was read")
            if row == skip:  # pyarrow follows bad offsets in a damaged file, which kills the process too
                _strings_as_binary(batch).validate(full=True)
            part = batch.slice(row, rows)
            yield part, start + (end - start) * (row + part.num_rows) // batch.num_rows
        skip, start = max(0, skip - batch.num_rows), end


def _select_columns(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    return [name for name in columns if name in names] if columns else list(names)


def _rows_per_read(size: int, rows: int) -> int:
    """Number of rows to convert at once of a batch or row group of `size` bytes."""
    return max(1, min(_MAX_ROWS, _BATCH_LIMIT * rows // max(1, size)))


# --- rows ------------------------------------------------------------------------------------------


def _iter_rows(batches: Iterator[tuple[Any, int]], options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    stats.unit = "row"
    number = options.skip_rows
    for batch, done in batches:
        for row in _decode_batch(batch, stats):
            number += 1
            stats.number = number
            stats.read += 1
            if isinstance(row, str):
                stats.record_bad_row(stats.position, row)
            else:
                yield row
        stats.advance(done)


def _decode_batch(batch: Any, stats: ReadStats) -> Iterator[Row | str]:
    """The rows of a batch, or why a row is bad."""
    is_large = batch.nbytes > min(_LARGE_BATCH_BYTES, MAX_ROW_BYTES)
    error: Exception | None = None
    if not (is_large and batch.num_rows > 1) and batch.nbytes <= MAX_ROW_BYTES:
        try:
            try:
                rows: list[dict[str, Any]] = batch.to_pylist()
            except _CONVERSION_ERRORS:  # strings that are not UTF-8
                batch = _strings_as_binary(batch)
                rows = batch.to_pylist()
        except _CONVERSION_ERRORS as conversion_error:  # in a nested value
            error = conversion_error
        else:
            yield from _decode_binary_columns(batch, rows, stats)
            return
    if batch.num_rows == 1:
        yield _first_line(error) if error else TOO_LONG
        return
    for row in range(batch.num_rows):
        yield from _decode_batch(batch.slice(row, 1), stats)


def _strings_as_binary(batch: Any) -> Any:
    """The batch with strings as bytes, without copying."""
    import pyarrow as pa

    kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    columns = [column.cast(kinds.get(column.type, column.type)) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _decode_binary_columns(batch: Any, rows: list[dict[str, Any]], stats: ReadStats) -> Iterator[Row]:
    import pyarrow as pa

    names = [field.name for field in batch.schema if field.type in (pa.binary(), pa.large_binary())]
    for row in rows:
        for name in names:
            if row[name] is not None:
                decoder = TextDecoder("utf-8")
                row[name] = decoder.decode(row[name], final=True)
                stats.undecodable += decoder.undecodable
        yield row


# --- errors ----------------------------------------------------------------------------------------


@contextmanager
def _translate_errors(source: SourceFile, stats: ReadStats) -> Iterator[None]:
    """Translate errors of pyarrow to `data.bad_format`. Errors of the system are raised as they are."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        position, reason = f"row {stats.read + 1}" if stats.read else "its beginning", _first_line(error)
        if reason.startswith(_NOT_A_TABLE_ERRORS):
            with source.path.open("rb") as file:
                is_zip = file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC
            reason = "its end is missing, or it is a file of another kind"
            reason = "it is a zip archive; unpack it" if is_zip else reason
        raise bad_format_error(source, position, reason) from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
