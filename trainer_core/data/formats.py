"""The file formats that training data may come in: a table from format to reader.

A reader streams the rows of one file as mappings from column to value, and never holds the file
whole. To add a format, write one such function and enter it in `FORMATS`.

No torch, no Qt.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_core.data.encodings import CHUNK, Tally, decoded
from trainer_core.data.readers.base import TEXT, Reader, Request, Row, Source, bad_format

__all__ = [
    "FORMATS",
    "KNOWN",
    "TEXT",
    "Format",
    "Reader",
    "Request",
    "Row",
    "Source",
    "bad_format",
    "format_of",
    "named",
]

_LONGEST_LINE: Final = 256 * 1024 * 1024
_LONGEST_FIELD: Final = 64 * 1024 * 1024
_BATCH_ROWS: Final = 256  # rows of parquet in memory at once


@dataclass(frozen=True, slots=True)
class Format:
    """One way to store data. `tabular`: rows with columns; otherwise one text, read in pieces."""

    read: Reader
    suffixes: tuple[str, ...]
    tabular: bool = True
    binary: bool = False


def read_text(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """A plain text in pieces of about `request.piece` characters, cut at line ends where there are any."""
    rest = ""
    for chunk in decoded(source.path, source.encoding, tally):
        rest += chunk
        start = 0
        while len(rest) - start >= request.piece:
            end = _cut(rest, start, request.piece)
            if not end:
                break
            yield {TEXT: rest[start:end]}
            start = end
        rest = rest[start:]
    if rest:
        yield {TEXT: rest}


def _cut(text: str, start: int, size: int) -> int:
    """Where a piece that begins at `start` ends; 0: more text is needed to tell."""
    end = text.rfind("\n", start + size // 2, start + size) + 1
    if end:
        return end
    end = text.find("\n", start + size, start + 4 * size) + 1
    if end:
        return end
    return start + size if len(text) - start >= 4 * size else 0  # a line without end


def _lines(source: Source, tally: Tally) -> Iterator[str]:
    """Lines with their `\\n`. Only line feeds end a line: U+2028 within a JSON text does not."""
    parts: list[str] = []
    length = 0
    for chunk in decoded(source.path, source.encoding, tally):
        *whole, rest = chunk.split("\n")
        for line in whole:
            yield "".join([*parts, line, "\n"])
            parts, length = [], 0
        parts.append(rest)
        length += len(rest)
        if length > _LONGEST_LINE:
            raise bad_format(source, f"byte {tally.done}", "a line is longer than 256 MiB")
    if last := "".join(parts):
        yield last


def read_jsonl(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """One JSON object a line. Lines that are not are skipped and counted."""
    for number, line in enumerate(_lines(source, tally), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            tally.skip(f"line {number}", getattr(error, "msg", "") or type(error).__name__)
            continue
        if isinstance(row, dict):
            yield row
        else:
            tally.skip(f"line {number}", "not a JSON object")


def read_json(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """An array of JSON objects, decoded one by one."""
    decoder = json.JSONDecoder()
    chunks = decoded(source.path, source.encoding, tally)
    text = next(chunks).lstrip()
    if not text.startswith("["):
        raise bad_format(source, "the beginning", "it should be an array of objects: [{…}, {…}]")
    number, position, wanted, ended = 1, 1, 0, False
    while True:
        position = _skip(text, position)
        if text[position : position + 1] == "]":
            return
        if len(text) - position > wanted or ended:
            try:
                row, position = decoder.raw_decode(text, position)
                if isinstance(row, dict):
                    yield row
                else:
                    tally.skip(f"element {number}", "not a JSON object")
                number, wanted = number + 1, 0
                continue
            except (ValueError, RecursionError) as error:
                if ended or len(text) - position > _LONGEST_LINE:
                    reason = "it ends too early" if position >= len(text) else str(error)
                    raise bad_format(source, f"element {number}", reason) from error
        # Not all of this element is here, as far as can be told. The wait doubles, so that a very long
        # element is not parsed from its start again for every chunk.
        wanted = max(2 * (len(text) - position), CHUNK // 2)
        text, position = text[position:], 0
        more, length = [text], len(text)
        while length <= wanted and not ended:
            chunk = next(chunks, None)
            ended = chunk is None
            more.append(chunk or "")
            length += len(chunk or "")
        text = "".join(more)


def _skip(text: str, position: int) -> int:
    """Past white space and commas."""
    while position < len(text) and text[position] in " \t\n\r,":
        position += 1
    return position


def read_csv(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    return _separated(source, tally, ",")


def read_tsv(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    return _separated(source, tally, "\t")


def _separated(source: Source, tally: Tally, separator: str) -> Iterator[Row]:
    """Rows below a header line. A separator that the header lacks gives way to `;` or a tab (Excel)."""
    csv.field_size_limit(_LONGEST_FIELD)  # the default of 128 KiB refuses long texts
    lines = _lines(source, tally)
    header = next(lines, "")
    if separator not in header:
        separator = next((other for other in (";", "\t", ",") if other in header), separator)
    names = next(csv.reader([header], delimiter=separator), [])
    names = [name.strip() for name in names]
    rows = csv.reader(lines, delimiter=separator)
    while True:
        try:
            values = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            tally.skip(f"line {rows.line_num + 1}", str(error))
            continue
        if values:
            yield dict(zip(names, values, strict=False))


def read_parquet(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """Rows of a parquet file, a few hundred at a time and only the columns asked for."""
    import pyarrow as pa  # here: the window looks at text files without paying for it
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(source.path, memory_map=False, pre_buffer=False) as file:
            names = [name for name in request.columns if name in file.schema_arrow.names]
            total, read = max(1, file.metadata.num_rows), 0
            batches = file.iter_batches(_BATCH_ROWS, columns=names if request.columns else None, use_threads=False)
            for batch in batches:
                yield from batch.to_pylist()
                read += batch.num_rows
                tally.done = source.bytes * read // total
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise bad_format(source, "an unknown place", str(error).splitlines()[0]) from error


def parquet_columns(path: Path) -> tuple[str, ...]:
    """The columns of a parquet file, from its schema alone."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return tuple(file.schema_arrow.names)


_TEXT_SUFFIXES: Final = (
    ".txt", ".text", ".md", ".markdown", ".rst", ".log", ".tex", ".html", ".htm", ".xml", ".yaml", ".yml", ".toml",
    ".ini", ".cfg", ".py", ".pyi", ".js", ".ts", ".jsx", ".tsx", ".java", ".c", ".h", ".cpp", ".hpp", ".cc", ".cs",
    ".go", ".rs", ".rb", ".php", ".swift", ".kt", ".scala", ".sh", ".bat", ".ps1", ".sql", ".r", ".lua", ".pl",
    ".css", ".vue", ".srt",
)  # fmt: skip

FORMATS: Final[dict[str, Format]] = {
    "text": Format(read_text, _TEXT_SUFFIXES, tabular=False),
    "jsonl": Format(read_jsonl, (".jsonl", ".ndjson")),
    "json": Format(read_json, (".json",)),
    "csv": Format(read_csv, (".csv",)),
    "tsv": Format(read_tsv, (".tsv", ".tab")),
    "parquet": Format(read_parquet, (".parquet", ".pq"), binary=True),
}

KNOWN: Final = ".txt, .md, .py, .jsonl, .json, .csv, .tsv, .parquet"  # what messages name


def format_of(suffix: str) -> str | None:
    """The format that a file name's suffix stands for."""
    return next((name for name, entry in FORMATS.items() if suffix.lower() in entry.suffixes), None)


_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}


def named(path: Path) -> tuple[str | None, str]:
    """Format and compression by a file's name: `a.jsonl.gz` is `("jsonl", "gzip")`, `a.doc` is `(None, "")`."""
    suffix = path.suffix.lower()
    if suffix == ".tgz":
        return "tar", "gzip"
    compression = _COMPRESSIONS.get(suffix, "")
    return format_of(Path(path.stem).suffix if compression else suffix), compression
