"""Arrow IPC files: streams (Hugging Face data sets) and files with an index (Feather).

The file is mapped into memory, since one batch may be larger than memory. The system reclaims the pages as needed.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainer_core.data.encodings import ReadStats
from trainer_core.data.readers.base import ReadOptions, Row, SourceFile
from trainer_core.data.readers.columnar import (
    iter_rows,
    rows_per_read,
    select_columns,
    strings_as_binary,
    translate_errors,
)
from trainer_core.data.readers.streams import require_regular_file


def read_arrow(source: SourceFile, options: ReadOptions, stats: ReadStats) -> Iterator[Row]:
    """Rows of an Arrow file with the requested columns."""
    import pyarrow as pa  # slow to import, and not needed for text files

    require_regular_file(source.path)
    with translate_errors(source, stats), pa.memory_map(str(source.path)) as file:
        yield from iter_rows(_iter_slices(file, source, options), options, stats)


def arrow_columns(source: SourceFile) -> tuple[str, ...]:
    """The columns of an Arrow file, from its schema."""
    import pyarrow as pa

    require_regular_file(source.path)
    with translate_errors(source, ReadStats()), pa.memory_map(str(source.path)) as file:
        return tuple(_open_reader(file).schema.names)


def _iter_slices(file: Any, source: SourceFile, options: ReadOptions) -> Iterator[tuple[Any, int]]:
    """Slices after the first `skip_rows` rows, each with the number of bytes read by its end."""
    import pyarrow as pa

    skip, start = options.skip_rows, 0
    for batch, end in _iter_batches(file):
        names = batch.schema.names
        batch = batch.select([names.index(name) for name in select_columns(options.columns, names)])
        rows = rows_per_read(end - start, batch.num_rows)
        for row in range(skip, batch.num_rows, rows):
            if source.path.stat().st_size < source.bytes:  # reading a mapped file beyond its end kills the process
                raise pa.ArrowInvalid("the file became shorter while it was read")
            if row == skip:  # pyarrow follows bad offsets in a damaged file, which kills the process too
                strings_as_binary(batch).validate(full=True)
            part = batch.slice(row, rows)
            yield part, start + (end - start) * (row + part.num_rows) // batch.num_rows
        skip, start = max(0, skip - batch.num_rows), end


def _iter_batches(file: Any) -> Iterator[tuple[Any, int]]:
    """The batches, each with the number of bytes read by its end."""
    reader = _open_reader(file)
    if not hasattr(reader, "num_record_batches"):
        yield from ((batch, file.tell()) for batch in reader)
        return
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number), file.size() * (number + 1) // reader.num_record_batches


def _open_reader(file: Any) -> Any:
    """A stream reader, or a file reader if the file has an index."""
    import pyarrow as pa

    has_index = file.read(6) == b"ARROW1"
    file.seek(0)
    return pa.ipc.open_file(file) if has_index else pa.ipc.open_stream(file)
