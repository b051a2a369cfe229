"""Preparation of small data sets in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer_core.config import Config
from trainer_core.data import prepare
from trainer_core.data.prepare import PreparedData
from trainer_core.messages import Value, is_known
from trainer_core.progress import NullReporter, StopRequested


class RecordingReporter(NullReporter):
    """Records warnings; raises `StopRequested` at poll number `stop_at`."""

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


def prepare_files(*data: Path, reporter: RecordingReporter | None = None, **knobs: Any) -> PreparedData:
    values = {"vocab_size": 320, "max_seq_len": 32, **knobs}
    return prepare.prepare(Config(data=[str(path) for path in data], **values), reporter or RecordingReporter())


def decode_split(result: PreparedData, split: str) -> str:
    tokens = result.open_split(split)
    return result.load_codec().decode(tokens.read(0, tokens.tokens).tolist(), skip_special_tokens=False)


def list_caches(home: Path) -> list[Path]:
    """Complete and unfinished caches."""
    paths = (home / "cache").glob("*") if (home / "cache").exists() else ()
    return [path for path in paths if path.name != "contents.json"]


def read_files(folder: Path) -> dict[str, bytes]:
    """The content of all files of a cache except meta.json."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "meta.json"]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}
