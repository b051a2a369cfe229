"""Tables stored by column: parquet, and Arrow files as Hugging Face data sets keep them.

pyarrow is imported where it is needed: the window looks at text files without paying for it.
No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from trainer_core.data.encodings import Decoder, Tally
from trainer_core.data.readers.base import LONGEST, TOO_LONG, Request, Row, Source, bad_format
from trainer_core.data.readers.streams import check_regular

_ROWS: Final = 256  # in memory at once, at most
_BATCH: Final = 4 * 1024 * 1024  # bytes in memory at once, by the average row
_LARGE: Final = 16 * 1024 * 1024  # bytes of a batch whose rows are taken one by one
_BUFFER: Final = 256 * 1024  # bytes read at once; without it a whole column of a row group is
_MAPPED: Final = 64 * 1024 * 1024  # bytes of an Arrow file after which its pages are let go


def read_parquet(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """The rows of a parquet file, with only the columns asked for."""
    import pyarrow.parquet as pq

    check_regular(source.path)
    with _plain_errors(source, tally), pq.ParquetFile(source.path, **_parquet_options()) as file:
        total = max(1, file.metadata.num_rows)
        names = _wanted(request.columns, file.schema_arrow.names)
        batches = _parquet_batches(file, names, request.skip)
        yield from _rows_of(batches, request, tally, lambda: source.bytes * tally.read // total)


def parquet_columns(source: Source) -> tuple[str, ...]:
    """The columns of a parquet file, from its schema alone."""
    import pyarrow.parquet as pq

    check_regular(source.path)
    with _plain_errors(source, Tally()), pq.ParquetFile(source.path) as file:
        return tuple(file.schema_arrow.names)


def _parquet_options() -> dict[str, Any]:
    return {
        "memory_map": False,
        "pre_buffer": False,
        "buffer_size": _BUFFER,
        "page_checksum_verification": True,  # where the file has checksums
    }


def _parquet_batches(file: Any, names: list[str], skip: int) -> Iterator[Any]:
    """Batches after the first `skip` rows. Row groups before are not read."""
    for group in range(file.metadata.num_row_groups):
        about = file.metadata.row_group(group)
        if skip >= about.num_rows:
            skip -= about.num_rows
            continue
        columns = [about.column(i) for i in range(about.num_columns)]
        size = sum(one.total_uncompressed_size for one in columns if _belongs(one.path_in_schema, names))
        rows = _rows_at_once(size, about.num_rows)
        for batch in file.iter_batches(rows, row_groups=[group], columns=names, use_threads=False):
            yield batch.slice(skip)
            skip = max(0, skip - batch.num_rows)


def _belongs(path: str, names: Sequence[str]) -> bool:
    """Whether a leaf of the schema, such as `messages.list.element.role`, is part of one of the columns."""
    return any(path == name or path.startswith(name + ".") for name in names)


def read_arrow(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """The rows of an Arrow file, a stream (Hugging Face) or one with an index (Feather)."""
    check_regular(source.path)
    with _plain_errors(source, tally):
        done = _Done()
        batches = _arrow_batches(source, request, done)
        yield from _rows_of(batches, request, tally, lambda: done.bytes)


def arrow_columns(source: Source) -> tuple[str, ...]:
    """The columns of an Arrow file, from its schema alone."""
    import pyarrow as pa

    check_regular(source.path)
    with _plain_errors(source, Tally()), pa.OSFile(str(source.path)) as file:
        return tuple(_schema(file).names)


_Place = tuple[int, int]  # number of a batch, and how many rows to pass over from its beginning


class _Done:
    bytes = 0  # of an Arrow file


def _arrow_batches(source: Source, request: Request, done: _Done) -> Iterator[Any]:
    """Parts of the batches, after the first `request.skip` rows.

    Where nothing is compressed the file is mapped into memory, for a batch may be larger than memory. It
    is mapped anew now and then: pages that were read count as this process's memory until they are let go.
    """
    mapped = _is_plain(source)
    start, after = None, (0, request.skip)
    while start != after:
        start = after
        for part, after in _window(source, request.columns, start, mapped, done):  # noqa: B007 - it is
            yield part


def _is_plain(source: Source) -> bool:
    """Whether a batch takes no memory of its own when the file is mapped: its buffers are not compressed."""
    import pyarrow as pa

    with pa.memory_map(str(source.path)) as file:
        before = pa.total_allocated_bytes()
        batch = next((batch for _, _, batch in _batches(file, (), 0)), None)
        return batch is None or pa.total_allocated_bytes() - before < batch.nbytes // 2


def _window(
    source: Source, columns: Sequence[str], start: _Place, mapped: bool, done: _Done
) -> Iterator[tuple[Any, _Place]]:
    """Parts from `start` on, each with the place after it, as far as they may be held at once."""
    import pyarrow as pa

    taken, skip = 0, start[1]
    with pa.memory_map(str(source.path)) if mapped else pa.OSFile(str(source.path)) as file:
        for place, ends_at, batch in _batches(file, columns, start[0], mapped):
            batch.validate()
            rows = _rows_at_once(batch.nbytes, batch.num_rows)
            for row in range(skip, batch.num_rows, rows):
                if source.path.stat().st_size < source.bytes:  # beyond its end a mapped file kills the process
                    raise bad_format(source, f"batch {place + 1}", "the file became shorter while it was read")
                part = batch.slice(row, rows)
                yield part, (place, row + part.num_rows)
                taken += part.nbytes
                if mapped and taken > _MAPPED:
                    return
            skip = max(0, skip - batch.num_rows)
            done.bytes = ends_at
            yield batch.slice(0, 0), (place + 1, skip)


def _batches(file: Any, columns: Sequence[str], first: int, whole: bool = True) -> Iterator[tuple[int, int, Any]]:
    """The batches from number `first` on: each with its number and the place in the file where it ends.

    `whole`: batches are read with all their columns, which costs nothing in a mapped file; to read only
    those asked for would copy them.
    """
    import pyarrow as pa

    names = _schema(file).names
    wanted = [names.index(name) for name in _wanted(columns, names)]
    options = pa.ipc.IpcReadOptions(included_fields=None if whole else wanted)
    if not _is_indexed(file):
        for number, batch in enumerate(pa.ipc.open_stream(file, options=options)):
            if number >= first:
                yield number, file.tell(), batch.select(wanted) if whole else batch
        return
    reader = pa.ipc.open_file(file, options=options)
    for number in range(first, reader.num_record_batches):
        ends_at = file.size() * (number + 1) // reader.num_record_batches
        batch = reader.get_batch(number)
        yield number, ends_at, batch.select(wanted) if whole else batch


def _schema(file: Any) -> Any:
    import pyarrow as pa

    opened = pa.ipc.open_file if _is_indexed(file) else pa.ipc.open_stream
    schema = opened(file).schema
    file.seek(0)
    return schema


def _is_indexed(file: Any) -> bool:
    """Whether batches can be found by number; a stream goes from one to the next."""
    magic = file.read(6)
    file.seek(0)
    return bytes(magic) == b"ARROW1"


# --- of both ---------------------------------------------------------------------------------------


def _wanted(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    return [name for name in columns if name in names] if columns else list(names)


def _rows_at_once(size: int, rows: int) -> int:
    """How many rows of a batch or row group of `size` bytes to take at once."""
    return max(1, min(_ROWS, _BATCH * rows // max(1, size)))


def _rows_of(batches: Iterator[Any], request: Request, tally: Tally, done: Callable[[], int]) -> Iterator[Row]:
    tally.unit = "row"
    number = request.skip
    for batch in batches:
        for row in _rows(batch, tally):
            number += 1
            tally.number = number
            tally.read += 1
            if isinstance(row, str):
                tally.skip(tally.position, row)
            else:
                yield row
        tally.move(done())


def _rows(batch: Any, tally: Tally) -> Iterator[Row | str]:
    """The rows of a batch; a text in place of a row says why there is none."""
    if batch.num_rows > 1 and batch.nbytes > _LARGE:
        return _one_by_one(batch, tally)
    if batch.nbytes > LONGEST:
        return iter([TOO_LONG])
    try:
        return _decoded(batch, tally)
    except UnicodeDecodeError:
        pass
    try:
        return _decoded(_undecoded(batch), tally)
    except UnicodeDecodeError as error:  # deep within a nested value
        return _one_by_one(batch, tally) if batch.num_rows > 1 else iter([str(error)])


def _one_by_one(batch: Any, tally: Tally) -> Iterator[Row | str]:
    for row in range(batch.num_rows):
        yield from _rows(batch.slice(row, 1), tally)


def _undecoded(batch: Any) -> Any:
    """The batch with its texts as bytes."""
    import pyarrow as pa

    kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    columns = [column.cast(kinds.get(column.type, column.type)) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _decoded(batch: Any, tally: Tally) -> Iterator[Row]:
    """The rows; bytes (what older programs write as text) become text, what is no UTF-8 in them is counted."""
    import pyarrow as pa

    kinds = (pa.binary(), pa.large_binary())
    names = [field.name for field in batch.schema if field.type in kinds]
    rows: list[dict[str, Any]] = batch.to_pylist()
    return _texts(rows, names, tally) if names else iter(rows)


def _texts(rows: list[dict[str, Any]], names: list[str], tally: Tally) -> Iterator[Row]:
    for row in rows:
        for name in names:
            if row[name] is not None:
                decoder = Decoder("utf-8")
                row[name] = decoder.feed(row[name], final=True)
                tally.undecodable += decoder.undecodable
        yield row


@contextmanager
def _plain_errors(source: Source, tally: Tally) -> Iterator[None]:
    """What pyarrow raises, as `data.bad_format` with the row; errors of the system pass."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        position = f"row {tally.read + 1}" if tally.read else "its beginning"
        raise bad_format(source, position, str(error).splitlines()[0]) from error
