"""Preparing small data sets in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer_core.config import Config
from trainer_core.data import prepare
from trainer_core.data.prepare import PreparedData
from trainer_core.messages import Value, is_known
from trainer_core.progress import NullReporter, StopRequested


class Listener(NullReporter):
    """Notes warnings; stops at poll number `stop_at`."""

    def __init__(self, stop_at: int = 0) -> None:
        self.warnings: dict[str, dict[str, Value]] = {}
        self.polls, self.stop_at = 0, stop_at

    def warn(self, code: str, **params: Value) -> None:
        assert is_known(code)
        self.warnings[code] = params

    def poll(self) -> None:
        self.polls += 1
        if self.polls == self.stop_at:
            raise StopRequested


def prepared(*data: Path, listener: Listener | None = None, **knobs: Any) -> PreparedData:
    values = {"vocab_size": 320, "max_seq_len": 32, **knobs}
    return prepare.prepare(Config(data=[str(path) for path in data], **values), listener or Listener())


def decoded(result: PreparedData, split: str) -> str:
    tokens = result.open_split(split)
    return result.load_codec().decode(tokens.read(0, tokens.tokens).tolist(), skip_special_tokens=False)


def caches(home: Path) -> list[Path]:
    """What lies in the cache's folder, beside what is remembered there of files and data sets."""
    found = (home / "cache").glob("*") if (home / "cache").exists() else ()
    return [path for path in found if path.name not in ("contents.json", "latest.json")]


def content(folder: Path) -> dict[str, bytes]:
    """All files of a cache but its record, which says when and from where."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in ("meta.json", "inputs.json")]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
