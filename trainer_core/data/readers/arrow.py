"""Arrow files: streams, as Hugging Face data sets keep them, and files with an index (Feather).

Where nothing is compressed such a file is mapped into memory, for a single batch may be larger than
memory. It is mapped anew now and then: pages that were read count as this process's memory until they
are let go.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from trainer_core.data.encodings import Tally
from trainer_core.data.readers.base import Request, Row, Source, bad_format
from trainer_core.data.readers.columnar import plain_errors, rows_at_once, rows_of, undecoded, wanted
from trainer_core.data.readers.streams import check_regular

_MAPPED: Final = 64 * 1024 * 1024  # bytes read after which the file is mapped anew
_SMALL: Final = 4096  # bytes; a batch that takes more memory than this was decompressed


class _Batch(NamedTuple):
    """A record batch; `start` and `end` are its places in the file, near enough."""

    number: int
    start: int
    end: int
    rows: Any


class _Part(NamedTuple):
    """Some rows of a batch, and where to go on after them: a batch, how many of its rows to pass over, a byte."""

    rows: Any
    number: int
    skip: int
    done: int


def read_arrow(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """The rows of an Arrow file, with only the columns asked for."""
    check_regular(source.path)
    with plain_errors(source, tally):
        yield from rows_of(_parts(source, request), request, tally)


def arrow_columns(source: Source) -> tuple[str, ...]:
    """The columns of an Arrow file, from its schema alone."""
    import pyarrow as pa  # here: the window looks at text files without paying for it

    check_regular(source.path)
    with plain_errors(source, Tally()), pa.OSFile(str(source.path)) as file:
        return tuple(_schema(file).names)


def _parts(source: Source, request: Request) -> Iterator[tuple[Any, int]]:
    """The rows after the first `request.skip`, some at once, each with the byte of the file after them."""
    mapped = _is_plain(source)
    before, part = None, _Part(None, 0, request.skip, 0)
    while part != before:
        before = part
        for part in _window(source, request.columns, before, mapped):
            yield part.rows, part.done
        part = part._replace(rows=None)  # lets the mapped file go


def _is_plain(source: Source) -> bool:
    """Whether a batch takes no memory of its own when the file is mapped: its buffers are not compressed."""
    import pyarrow as pa

    with pa.memory_map(str(source.path)) as file:
        before = pa.total_allocated_bytes()
        batch = next(_batches(file, (), 0, True), None)
        return batch is None or pa.total_allocated_bytes() - before < _SMALL


def _window(source: Source, columns: Sequence[str], start: _Part, mapped: bool) -> Iterator[_Part]:
    """The parts after `start`, as far as the file may stay mapped; without a part there are no more."""
    import pyarrow as pa

    skip = start.skip
    with pa.memory_map(str(source.path)) if mapped else pa.OSFile(str(source.path)) as file:
        for number, begin, end, batch in _batches(file, columns, start.number, mapped):
            _check_whole(batch)
            total = max(1, batch.num_rows)
            rows = rows_at_once(end - begin, total)
            for row in range(skip, batch.num_rows, rows):
                if source.path.stat().st_size < source.bytes:  # beyond its end a mapped file kills the process
                    raise bad_format(source, f"batch {number + 1}", "the file became shorter while it was read")
                part = batch.slice(row, rows)
                _check_part(part)
                done = begin + (end - begin) * (row + part.num_rows) // total
                yield _Part(part, number, row + part.num_rows, done)
                if mapped and done - start.done > _MAPPED:
                    return
            skip = max(0, skip - batch.num_rows)
            yield _Part(batch.slice(0, 0), number + 1, skip, end)


def _check_whole(batch: Any) -> None:
    """Raises `ArrowInvalid` where places in a damaged file lead anywhere: to follow them ends the process."""
    batch.validate()
    for column in batch.columns:
        if _is_deep(column):
            column.validate(full=True)  # takes as long for a part as for the whole


def _check_part(part: Any) -> None:
    """The rest of it. Texts are looked at as bytes: whether they are UTF-8 is found as they are decoded."""
    for column in undecoded(part).columns:
        if not _is_deep(column):
            column.validate(full=True)


def _is_deep(column: Any) -> bool:
    """Whether its values hold others."""
    import pyarrow as pa

    return bool(pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type))


def _batches(file: Any, columns: Sequence[str], first: int, mapped: bool) -> Iterator[_Batch]:
    """The batches from number `first` on.

    Of a mapped file they are read with all their columns, which costs nothing; to read only those asked
    for would copy them.
    """
    import pyarrow as pa

    names = _schema(file).names
    fields = [names.index(name) for name in wanted(columns, names)]
    options = pa.ipc.IpcReadOptions(included_fields=None if mapped else fields)
    if _is_indexed(file):
        reader = pa.ipc.open_file(file, options=options)
        size, count = file.size(), reader.num_record_batches
        for number in range(first, count):
            batch = reader.get_batch(number)
            start, end = size * number // count, size * (number + 1) // count
            yield _Batch(number, start, end, batch.select(fields) if mapped else batch)
        return
    start = 0
    for number, batch in enumerate(pa.ipc.open_stream(file, options=options)):
        if number >= first:
            yield _Batch(number, start, file.tell(), batch.select(fields) if mapped else batch)
        start = file.tell()


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
