"""Options of an evaluation, the evaluations of a run, and their rows. No Qt."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.evaluation.report import FOLDER, SUMMARY_SUFFIX
from trainer_core.protocol import Evaluation
from trainer_core.runs.run_dir import RunDir, home, safe_name
from trainer_core.system import files

MAX_ROWS: Final = 5_000
"""Rows of a file that are displayed."""
_MAX_EVALUATIONS: Final = 100
_MAX_LINE_BYTES: Final = 16 * 1024**2
_NAME_CHARS: Final = 60  # of a base model
_KEPT_CHARS: Final = 240  # of each text of a row that is not selected


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """`data`: empty: the held-out rows. `rows`: 0: all. `judge`: as the command reads it, empty: none."""

    data: str = ""
    rows: int = 500
    judge: str = ""
    compare: bool = False
    system: str = ""
    examples: int = 0

    def arguments(self) -> list[str]:
        """Flags of the command `evaluate`."""
        flags = ["--rows", str(self.rows)]
        flags += ["--data", self.data] if self.data else []
        flags += ["--judge", self.judge] if self.judge else []
        if self.compare:
            flags += ["--compare", "--examples", str(self.examples)]
            flags += ["--system", self.system] if self.system else []
        return flags


@dataclass(frozen=True, slots=True)
class EvaluatedAnswer:
    """Of one model. `is_right`: accepted by the judge, else an exact match; None for a text."""

    text: str
    is_right: bool | None
    loss: float | None


@dataclass(slots=True)
class EvaluatedRow:
    """A row with its answers by the name of the model. `offset`: of its line in the file, in bytes."""

    offset: int
    number: int
    prompt: str
    reference: str
    answers: dict[str, EvaluatedAnswer] = field(default_factory=dict)

    @property
    def first(self) -> EvaluatedAnswer:
        return next(iter(self.answers.values()))

    @property
    def last(self) -> EvaluatedAnswer:
        return next(reversed(self.answers.values()))


FILTERS: Final[dict[str, Callable[[EvaluatedRow], bool]]] = {
    "differ": lambda row: row.first.text != row.last.text,
    "wrong": lambda row: row.last.is_right is False,
    "worse": lambda row: row.first.is_right is True and row.last.is_right is False,
    "all": lambda _: True,
}
"""Whether a row is displayed. First and last model: base and tuned."""


def base_model_folder(name: str) -> Path:
    """Folder of the evaluations of a base model before any training, arranged as that of a run."""
    return home() / "base_models" / safe_name(name[-_NAME_CHARS:])  # paths often begin alike


def prepare_base_model(config: Config) -> tuple[Path, Path]:
    """Write a configuration to the folder of its base model. Returns this file, and one for the rows of an evaluation.

    Raises `disk.full` or `disk.not_writable`.
    """
    folder = RunDir(base_model_folder(config.base_model))
    with files.translate_os_errors(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    folder.write_config(config)
    return folder.config, folder.path / FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}.jsonl"


def list_evaluations(run: Path) -> list[tuple[Path, Evaluation]]:
    """Files of rows and summaries of a run's evaluations, newest first. Unreadable ones are left out.

    `run`: its folder, or a `base_model_folder`.
    """
    found = []
    for path in sorted((run / FOLDER).glob(f"*{SUMMARY_SUFFIX}"), reverse=True)[:_MAX_EVALUATIONS]:
        try:
            event = protocol.decode_event(path.read_bytes())
        except (OSError, protocol.ProtocolError):
            continue
        if isinstance(event, Evaluation) and event.scores:
            found.append((path.with_name(path.name.removesuffix(SUMMARY_SUFFIX) + ".jsonl"), event))
    return found


def read_rows(path: Path) -> list[EvaluatedRow]:
    """The first `MAX_ROWS` rows with shortened texts. Raises `OSError`; invalid lines are skipped."""
    return list(islice(_iter_rows(path), MAX_ROWS))


def _iter_rows(path: Path) -> Iterator[EvaluatedRow]:
    offset = 0
    with path.open("rb") as file:
        while line := file.readline(_MAX_LINE_BYTES):
            if (row := _parse(line, offset, _KEPT_CHARS)) is not None:
                yield row
            offset = file.tell()


def read_row(path: Path, offset: int) -> EvaluatedRow | None:
    """A row with its whole texts; None if there is none at this offset. Raises `OSError`."""
    with path.open("rb") as file:
        file.seek(offset)
        return _parse(file.readline(_MAX_LINE_BYTES), offset, None)


def _parse(line: bytes, offset: int, limit: int | None) -> EvaluatedRow | None:
    """`limit`: characters of each text. None: all of them, and all messages of the prompt."""
    try:
        values = json.loads(line)
        row = EvaluatedRow(offset, values["row"], _prompt(values, limit), str(values.get("reference", ""))[:limit])
        for name, one in values["models"].items():
            is_right = one.get("judged", one.get("exact_match"))
            row.answers[name] = EvaluatedAnswer(str(one.get("answer", ""))[:limit], is_right, one.get("loss"))
    except (ValueError, TypeError, LookupError, AttributeError):
        return None
    return row if row.answers else None


def _prompt(values: dict[str, Any], limit: int | None) -> str:
    """The last message before the answer, or the text of a row without answers."""
    messages = values.get("prompt")
    if messages is None:
        return str(values["text"])[:limit]
    if limit is not None:
        return str(messages[-1]["content"])[:limit] if messages else ""
    return "\n\n".join(f"{one['role']}: {one['content']}" if len(messages) > 1 else one["content"] for one in messages)
