"""The file formats that training data may come in: a table from format to reader.

A reader streams the rows of one file as mappings from column to value, and never holds the file
whole. To add a format, write one such function (`readers/`) and enter it in `FORMATS`.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_core.data.readers.arrow import arrow_columns, read_arrow
from trainer_core.data.readers.base import TEXT, Reader, Request, Row, Source, bad_format
from trainer_core.data.readers.hugging_face import hugging_face_files, hugging_face_validation
from trainer_core.data.readers.json_array import read_json
from trainer_core.data.readers.lines import read_csv, read_jsonl, read_tsv
from trainer_core.data.readers.parquet import parquet_columns, read_parquet
from trainer_core.data.readers.tar import read_tar
from trainer_core.data.readers.text import read_text

__all__ = [
    "FORMATS", "KNOWN", "TEXT", "Format", "Reader", "Request", "Row", "Source", "bad_format", "file_patterns",
    "format_of", "hugging_face_files", "hugging_face_validation", "named",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Format:
    """One way to store data.

    `tabular`: rows with columns; otherwise one text, read in pieces. `binary`: no text that has an
    encoding. `columns`: reads them from a schema; where there is none, the first rows tell.
    """

    read: Reader
    suffixes: tuple[str, ...]
    tabular: bool = True
    binary: bool = False
    columns: Callable[[Source], tuple[str, ...]] | None = None


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
    "parquet": Format(read_parquet, (".parquet", ".pq"), binary=True, columns=parquet_columns),
    "arrow": Format(read_arrow, (".arrow", ".feather"), binary=True, columns=arrow_columns),
    "tar": Format(read_tar, (".tar",), binary=True),
}

# What messages name.
KNOWN: Final = ".txt, .md, .py, .jsonl, .json, .csv, .tsv, .parquet, .arrow, .tar, .gz, .zst"

_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_TAR_GZIP: Final = ".tgz"
_COMPRESSIBLE: Final = ("text", "jsonl", "json", "csv", "tsv", "tar")  # the others compress within


def format_of(suffix: str) -> str | None:
    """The format that a file name's suffix stands for."""
    return next((name for name, entry in FORMATS.items() if suffix.lower() in entry.suffixes), None)


def file_patterns() -> list[str]:
    """Patterns that match the name of every file that `named` recognizes, for a file dialog: `*.txt`, `*.gz`."""
    suffixes = [suffix for entry in FORMATS.values() for suffix in entry.suffixes]
    return [f"*{suffix}" for suffix in (*suffixes, _TAR_GZIP, *_COMPRESSIONS)]


def named(path: Path) -> tuple[str | None, str]:
    """Format and compression by a file's name: `a.jsonl.gz` is `("jsonl", "gzip")`, `a.doc` is `(None, "")`."""
    suffix = path.suffix.lower()
    if suffix == _TAR_GZIP:
        return "tar", "gzip"
    compression = _COMPRESSIONS.get(suffix, "")
    kind = format_of(Path(path.stem).suffix if compression else suffix)
    return (None if compression and kind not in _COMPRESSIBLE else kind), compression
