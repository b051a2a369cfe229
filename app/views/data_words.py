"""What chosen files seem to be, in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QCoreApplication

from app.state.data_glance import Glance
from app.views import words

_NAMES = {
    "jsonl": "JSON Lines", "json": "JSON", "csv": "CSV", "tsv": "TSV", "parquet": "Parquet", "arrow": "Arrow",
}  # fmt: skip
_MOST_FORMATS = 3


def seen(glance: Glance | None, own: list[str], paths: list[str]) -> tuple[str, bool]:
    """What to say of the sources, and whether that is a warning. `own`: those that are not built in."""
    if not paths:
        return "", False
    if not own:
        return QCoreApplication.translate("Glance", "Comes with Traindeck"), False
    if glance is None:
        return QCoreApplication.translate("Glance", "Looking…"), False
    if glance.missing:
        return QCoreApplication.translate("Glance", "Not found: {names}").format(names=_names(glance.missing)), True
    if not glance.files:
        return QCoreApplication.translate("Glance", "No file in it that can be read"), True
    if glance.unknown:
        kind = QCoreApplication.translate("Glance", "The name does not tell the kind: {names}")
        return kind.format(names=_names(glance.unknown)), False
    formats = QCoreApplication.translate("Glance", ", ").join(map(_format, glance.formats[:_MOST_FORMATS]))
    return f"{formats} · {_files(glance)} · {words.small_size(glance.bytes)}{'+' if glance.more else ''}", False


def _names(paths: Sequence[str]) -> str:
    return ", ".join(Path(path).name or path for path in paths)


def _files(glance: Glance) -> str:
    if glance.files == 1:
        return QCoreApplication.translate("Glance", "1 file")
    count = f"{words.count(glance.files)}{'+' if glance.more else ''}"
    return QCoreApplication.translate("Glance", "{count} files").format(count=count)


def _format(name: str) -> str:
    match name:
        case "text":
            return QCoreApplication.translate("Glance", "Text")
        case "tar":
            return QCoreApplication.translate("Glance", "Tar archive")
    return _NAMES.get(name, name)
