"""Corrected answers: a data set of one's own, as JSON lines.

A row has the conversation with the corrected answer as `messages`, which the trainer reads, and the conversation with
both answers as `chosen` and `rejected`, which preference training reads. `correction_id` identifies it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from trainer_core import protocol
from trainer_core.system import files

FILE_NAME = "corrections.jsonl"
_ID = "correction_id"


class CorrectionStore:
    """Adds and removes rows. Another program may edit the file in between; its rows, without an id, are kept."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count(self) -> int:
        """Number of rows."""
        try:
            with self.path.open("rb") as file:
                return sum(1 for line in file if line.strip())
        except OSError:
            return 0

    @property
    def can_undo(self) -> bool:
        """Whether there is a row that `undo` removes."""
        with contextlib.suppress(OSError):
            return any(map(_row_id, self._lines()))
        return False

    def add(self, question: Sequence[protocol.Turn], answer: str, rejected: str, replaced: str = "") -> str:
        """Append a row: the messages up to the question, and both answers. Returns its id. Raises `OSError`.

        `replaced`: id of the row to remove, an earlier correction of the same answer.
        """
        before = [{"role": turn.role, "content": turn.content} for turn in question]
        chosen, wrong = ([*before, {"role": "assistant", "content": text}] for text in (answer, rejected))
        row_id = os.urandom(8).hex()
        row = json.dumps({_ID: row_id, "messages": chosen, "chosen": chosen, "rejected": wrong}, ensure_ascii=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if replaced and self.path.is_file():
            kept = [line for line in self._lines() if _row_id(line) != replaced]
            self._write([*kept, row.encode("utf-8", "replace")])
            return row_id
        with files.retry_sharing_violation(lambda: self.path.open("ab+")) as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                row = row if file.read(1) == b"\n" else f"\n{row}"
            file.write(f"{row}\n".encode("utf-8", "replace"))
        return row_id

    def undo(self) -> str:
        """Remove the last row with an id. Returns the id; empty if there is none. Raises `OSError`."""
        lines = self._lines()
        for place in reversed(range(len(lines))):
            if row_id := _row_id(lines[place]):
                self._write([*lines[:place], *lines[place + 1 :]])
                return row_id
        return ""

    def _lines(self) -> list[bytes]:
        return [line for line in self.path.read_bytes().split(b"\n") if line.strip()]

    def _write(self, lines: Sequence[bytes]) -> None:
        files.write_atomic(self.path, b"".join(line + b"\n" for line in lines))


def _row_id(line: bytes) -> str:
    """Id of a row of this program; empty for other rows."""
    with contextlib.suppress(ValueError, RecursionError):
        row = json.loads(line)
        return str(row.get(_ID, "")) if isinstance(row, dict) else ""
    return ""
