"""The table of supported data formats.

A reader streams the rows of one file in bounded memory. To add a format, write a reader in `readers/` and enter it in
`FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from trainer_core.data.builtin_tasks import read_tasks
from trainer_core.data.readers.base import FileInput, Row
from trainer_core.data.readers.columnar import column_names, read_arrow, read_parquet
from trainer_core.data.readers.delimited import read_csv
from trainer_core.data.readers.json_objects import decode_object, read_json, read_jsonl
from trainer_core.data.readers.tar import decode_sample, read_tar
from trainer_core.data.readers.text import read_text


@dataclass(frozen=True, slots=True)
class Format:
    """A file format.

    `read` yields the position ("line 17") and the raw form of each row; `decode` converts that to a row, or returns why
    the row is bad. `tabular`: rows with columns, otherwise plain text. `binary`: has no text encoding. `columns`: reads
    the column names from a schema; without it, they are taken from the first rows. `seeks`: `read` skips `skip_rows`.
    """

    read: Callable[[FileInput], Iterator[tuple[str, Any]]]
    suffixes: tuple[str, ...]
    decode: Callable[[Any], Row | str] = lambda row: row
    tabular: bool = True
    binary: bool = False
    columns: Callable[[FileInput], tuple[str, ...]] | None = None
    seeks: bool = False


_TEXT_SUFFIXES: Final = (
    ".txt", ".text", ".md", ".markdown", ".rst", ".log", ".tex", ".html", ".htm", ".xml", ".yaml", ".yml", ".toml",
    ".ini", ".cfg", ".py", ".pyi", ".js", ".ts", ".jsx", ".tsx", ".java", ".c", ".h", ".cpp", ".hpp", ".cc", ".cs",
    ".go", ".rs", ".rb", ".php", ".swift", ".kt", ".scala", ".sh", ".bat", ".ps1", ".sql", ".r", ".lua", ".pl",
    ".css", ".vue", ".srt",
)  # fmt: skip

FORMATS: Final[dict[str, Format]] = {
    "text": Format(read_text, _TEXT_SUFFIXES, tabular=False),
    "jsonl": Format(read_jsonl, (".jsonl", ".ndjson"), decode_object),
    "json": Format(read_json, (".json",), decode_object),
    "csv": Format(read_csv, (".csv",)),
    "tsv": Format(read_csv, (".tsv", ".tab")),
    "parquet": Format(read_parquet, (".parquet", ".pq"), binary=True, columns=column_names, seeks=True),
    "arrow": Format(read_arrow, (".arrow", ".feather"), binary=True, columns=column_names, seeks=True),
    "tar": Format(read_tar, (".tar",), decode_sample, binary=True),
}
_TASKS: Final = Format(read_tasks, ())  # builtin:tasks

KNOWN_SUFFIXES: Final = ".txt, .md, .py, .jsonl, .json, .csv, .tsv, .parquet, .arrow, .tar, .gz, .zst"

_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_TAR_GZIP: Final = ".tgz"
_COMPRESSIBLE: Final = ("text", "jsonl", "json", "csv", "tsv", "tar")  # the others have internal compression


def file_patterns() -> list[str]:
    """Patterns for a file dialog that match all known file names: `*.txt`, `*.gz`."""
    suffixes = [suffix for entry in FORMATS.values() for suffix in entry.suffixes]
    return [f"*{suffix}" for suffix in (*suffixes, _TAR_GZIP, *_COMPRESSIONS)]


def format_from_name(path: Path) -> tuple[str | None, str]:
    """Format and compression by file name: `("jsonl", "gzip")` of `a.jsonl.gz`, `(None, "")` of `a.doc`."""
    suffix = path.suffix.lower()
    if suffix == _TAR_GZIP:
        return "tar", "gzip"
    compression = _COMPRESSIONS.get(suffix, "")
    inner = Path(path.stem).suffix.lower() if compression else suffix
    kind = next((name for name, entry in FORMATS.items() if inner in entry.suffixes), None)
    return (None if compression and kind not in _COMPRESSIBLE else kind), compression


def read_rows(file: FileInput) -> Iterator[Row | str]:
    """The rows of a file after `skip_rows`, or why a row is bad. `file.position` is that of the last one.

    Raises `OSError`, `data.unreadable` if it is not a regular file, and `data.bad_format` if it cannot be read further.
    """
    entry = FORMATS.get(file.source.format, _TASKS)
    rows = entry.read(file)
    if not entry.seeks:
        for _ in islice(rows, file.skip_rows):
            pass
    return _decode_rows(rows, entry, file)


def _decode_rows(rows: Iterator[tuple[str, Any]], entry: Format, file: FileInput) -> Iterator[Row | str]:
    for position, row in rows:
        file.position = f"after byte {file.range_start}" if file.range_start else position
        yield entry.decode(row)
