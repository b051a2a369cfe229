"""The table of supported data formats.

A reader streams the rows of one file as mappings from column to value, in bounded memory. To add a format, write a
reader in `readers/` and enter it in `FORMATS`.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainer_core.data.readers.base import Reader, SourceFile
from trainer_core.data.readers.columnar import arrow_columns, parquet_columns, read_arrow, read_parquet
from trainer_core.data.readers.delimited import read_csv
from trainer_core.data.readers.json_objects import read_json, read_jsonl
from trainer_core.data.readers.tar import read_tar
from trainer_core.data.readers.text import read_text


@dataclass(frozen=True, slots=True)
class Format:
    """A file format.

    `tabular`: rows with columns, otherwise plain text. `binary`: has no text encoding. `columns`: reads the column
    names from a schema; without it, they are taken from the first rows.
    """

    read: Reader
    suffixes: tuple[str, ...]
    tabular: bool = True
    binary: bool = False
    columns: Callable[[SourceFile], tuple[str, ...]] | None = None


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
    "tsv": Format(read_csv, (".tsv", ".tab")),
    "parquet": Format(read_parquet, (".parquet", ".pq"), binary=True, columns=parquet_columns),
    "arrow": Format(read_arrow, (".arrow", ".feather"), binary=True, columns=arrow_columns),
    "tar": Format(read_tar, (".tar",), binary=True),
}

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
