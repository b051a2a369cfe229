"""What readers of tables stored by column share: batches of pyarrow as rows.

pyarrow is imported where it is needed: the window looks at text files without paying for it.
No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from trainer_core.data.encodings import Decoder, Tally
from trainer_core.data.readers.base import LONGEST, TOO_LONG, Request, Row, Source, bad_format

_ROWS: Final = 256  # in memory at once, at most
_BATCH: Final = 4 * 1024 * 1024  # bytes in memory at once, by the average row
_LARGE: Final = 16 * 1024 * 1024  # bytes of a batch whose rows are taken one by one
_UNUSABLE: Final = (ValueError, OverflowError)  # what pyarrow raises for values that Python cannot hold
_NO_TABLE: Final = ("Parquet magic bytes not found", "Parquet file size is", "Not an Arrow file")  # as pyarrow says it
_ZIP: Final = b"PK\x03\x04"


def wanted(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    return [name for name in columns if name in names] if columns else list(names)


def rows_at_once(size: int, rows: int) -> int:
    """How many rows of a batch or row group of `size` bytes to take at once."""
    return max(1, min(_ROWS, _BATCH * rows // max(1, size)))


def rows_of(batches: Iterator[tuple[Any, int]], request: Request, tally: Tally) -> Iterator[Row]:
    """The rows of batches, each of which comes with how many bytes of the file are done after it."""
    tally.unit = "row"
    number = request.skip
    for batch, done in batches:
        for row in _rows(batch, tally):
            number += 1
            tally.number = number
            tally.read += 1
            if isinstance(row, str):
                tally.skip(tally.position, row)
            else:
                yield row
        tally.move(done)


def _rows(batch: Any, tally: Tally) -> Iterator[Row | str]:
    """The rows of a batch; a text in place of a row says why there is none."""
    if batch.num_rows > 1 and batch.nbytes > min(_LARGE, LONGEST):
        return _one_by_one(batch, tally)
    if batch.nbytes > LONGEST:
        return iter([TOO_LONG])
    try:
        return _decoded(batch, tally)
    except _UNUSABLE:
        pass
    try:
        return _decoded(undecoded(batch), tally)
    except _UNUSABLE as error:  # deep within a nested value
        return _one_by_one(batch, tally) if batch.num_rows > 1 else iter([_first_line(error)])


def _one_by_one(batch: Any, tally: Tally) -> Iterator[Row | str]:
    for row in range(batch.num_rows):
        yield from _rows(batch.slice(row, 1), tally)


def undecoded(batch: Any) -> Any:
    """The batch with its texts as bytes."""
    import pyarrow as pa

    kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    columns = [column.cast(kinds.get(column.type, column.type)) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _decoded(batch: Any, tally: Tally) -> Iterator[Row]:
    """The rows; bytes (what older programs write as text) become text, what is no UTF-8 in them is counted.

    Raises `_UNUSABLE`.
    """
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
def plain_errors(source: Source, tally: Tally) -> Iterator[None]:
    """What pyarrow raises, as `data.bad_format` with the row; errors of the system pass."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        position = f"row {tally.read + 1}" if tally.read else "its beginning"
        raise bad_format(source, position, _in_our_words(source, _first_line(error))) from error


def _in_our_words(source: Source, reason: str) -> str:
    """What pyarrow says of files that are no tables at all, plainly; what else it says as it is."""
    if not reason.startswith(_NO_TABLE):
        return reason
    with source.path.open("rb") as file:
        is_zip = file.read(len(_ZIP)) == _ZIP
    return "it is a zip archive; unpack it" if is_zip else "its end is missing, or it is a file of another kind"


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
