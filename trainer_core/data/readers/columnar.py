"""Parquet and Arrow IPC files: streams (Hugging Face data sets) and files with an index (Feather).

pyarrow is imported in functions: it is slow to import, and not needed for text files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from trainer_core.data.encodings import REPLACE_AND_COUNT
from trainer_core.data.readers.base import MAX_ROW_BYTES, TOO_LONG, FileInput, Row, require_regular_file

_MAX_ROWS: Final = 256  # rows in memory at once
_BATCH_LIMIT: Final = 4 * 1024 * 1024  # bytes in memory at once, by the average row size
_LARGE_BATCH_BYTES: Final = 16 * 1024 * 1024  # the rows of larger batches are converted one by one
_BUFFER_BYTES: Final = 256 * 1024  # without a limit, a column of a Parquet row group is read at once
_CONVERSION_ERRORS: Final = (ValueError, OverflowError)  # values without Python equivalent
_NOT_A_TABLE_ERRORS: Final = ("Parquet magic bytes not found", "Parquet file size is", "Not an Arrow file")

# A part of a table, the number of its first row, and the approximate number of bytes read by its end.
Batches = Iterator[tuple[Any, int, int]]


def read_parquet(file: FileInput) -> Iterator[tuple[str, Row | str]]:
    """Rows of a Parquet file after `skip_rows`."""
    with _translate_errors(file), _open_parquet(file) as table:
        yield from _iter_rows(_iter_parquet_batches(table, file), file)


def read_arrow(file: FileInput) -> Iterator[tuple[str, Row | str]]:
    """Rows of an Arrow file after `skip_rows`."""
    with _translate_errors(file), _map_file(file) as mapped:
        yield from _iter_rows(_iter_arrow_batches(mapped, file), file)


def column_names(file: FileInput) -> tuple[str, ...]:
    """The columns of a Parquet or Arrow file, from its schema."""
    with _translate_errors(file):
        if file.source.format == "parquet":
            with _open_parquet(file) as table:
                return tuple(table.schema_arrow.names)
        with _map_file(file) as mapped:
            return tuple(_open_arrow(mapped).schema.names)


# --- batches ---------------------------------------------------------------------------------------


def _open_parquet(file: FileInput) -> Any:
    import pyarrow.parquet as pq

    require_regular_file(file.source.path)
    options = {"memory_map": False, "pre_buffer": False, "page_checksum_verification": True}
    return pq.ParquetFile(file.source.path, buffer_size=_BUFFER_BYTES, **options)


def _iter_parquet_batches(table: Any, file: FileInput) -> Batches:
    metadata, names = table.metadata, table.schema_arrow.names
    columns = [name for name in file.columns if name in names] if file.columns else None
    end = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        start, end = end, end + group.num_rows
        if end <= file.skip_rows:
            continue
        # Size of all columns: reading that of one column crashes on damaged files (pyarrow 26).
        rows = _rows_per_read(group.total_byte_size, group.num_rows)
        for batch in table.iter_batches(rows, row_groups=[number], columns=columns, use_threads=False):
            yield batch, start, file.source.bytes * (start + batch.num_rows) // metadata.num_rows
            start += batch.num_rows


def _map_file(file: FileInput) -> Any:
    """Maps the file into memory, since one batch may be larger than memory."""
    import pyarrow as pa

    require_regular_file(file.source.path)
    return pa.memory_map(str(file.source.path))


def _open_arrow(mapped: Any) -> Any:
    """A stream reader, or a file reader if the file has an index."""
    import pyarrow as pa

    has_index = mapped.read(6) == b"ARROW1"
    mapped.seek(0)
    return pa.ipc.open_file(mapped) if has_index else pa.ipc.open_stream(mapped)


def _iter_arrow_batches(mapped: Any, file: FileInput) -> Batches:
    import pyarrow as pa

    reader = _open_arrow(mapped)
    count = getattr(reader, "num_record_batches", None)  # of a file with an index
    batches = reader if count is None else map(reader.get_batch, range(count))
    first = start = 0  # row, byte
    for number, batch in enumerate(batches, 1):
        end = mapped.tell() if count is None else file.source.bytes * number // count
        names = batch.schema.names
        batch = batch.select([names.index(name) for name in file.columns if name in names] if file.columns else names)
        rows = _rows_per_read(end - start, batch.num_rows)
        for row in range(max(0, file.skip_rows - first), batch.num_rows, rows):
            if file.source.path.stat().st_size < file.source.bytes:  # reading beyond the end kills the process
                raise pa.ArrowInvalid("the file became shorter while it was read")
            if row <= max(0, file.skip_rows - first):  # so do bad offsets in a damaged file
                _strings_as_binary(batch).validate(full=True)
            part = batch.slice(row, rows)
            yield part, first + row, start + (end - start) * (row + part.num_rows) // batch.num_rows
        first, start = first + batch.num_rows, end


def _rows_per_read(size: int, rows: int) -> int:
    """Number of rows to convert at once of a batch or row group of `size` bytes."""
    return max(1, min(_MAX_ROWS, _BATCH_LIMIT * rows // max(1, size)))


# --- rows ------------------------------------------------------------------------------------------


def _iter_rows(batches: Batches, file: FileInput) -> Iterator[tuple[str, Row | str]]:
    for batch, first, done in batches:
        skipped = max(0, file.skip_rows - first)
        for number, row in enumerate(_decode_batch(batch.slice(skipped)), first + skipped + 1):
            yield f"row {number}", row
        file.advance(done)


def _decode_batch(batch: Any) -> Iterator[Row | str]:
    """The rows of a batch, or why a row is bad."""
    import pyarrow as pa

    reason = TOO_LONG
    if batch.nbytes <= (MAX_ROW_BYTES if batch.num_rows == 1 else min(_LARGE_BATCH_BYTES, MAX_ROW_BYTES)):
        try:
            try:
                rows = batch.to_pylist()
            except _CONVERSION_ERRORS:  # strings that are not UTF-8
                batch = _strings_as_binary(batch)
                rows = batch.to_pylist()
        except _CONVERSION_ERRORS as error:  # in a nested value
            reason = _first_line(error)
        else:
            binary = [field.name for field in batch.schema if field.type in (pa.binary(), pa.large_binary())]
            for row in rows:
                for name in binary:
                    if row[name] is not None:
                        row[name] = row[name].decode("utf-8-sig", REPLACE_AND_COUNT)
                yield row
            return
    if batch.num_rows == 1:
        yield reason
        return
    for number in range(batch.num_rows):
        yield from _decode_batch(batch.slice(number, 1))


def _strings_as_binary(batch: Any) -> Any:
    """The batch with strings as bytes, without copying."""
    import pyarrow as pa

    kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    columns = [column.cast(kinds.get(column.type, column.type)) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


# --- errors ----------------------------------------------------------------------------------------


@contextmanager
def _translate_errors(file: FileInput) -> Iterator[None]:
    """Translate errors of pyarrow to `data.bad_format`. Errors of the system are raised as they are."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = _first_line(error)
        if reason.startswith(_NOT_A_TABLE_ERRORS):
            reason = "its end is missing, or it is a file of another kind"
        raise file.bad_format_error(f"after {file.position}" if file.position else "its beginning", reason) from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
