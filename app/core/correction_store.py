"""Corrected answers: a data set of one's own, as JSON lines.

A row has the conversation with the corrected answer as `messages`, which the trainer reads, and the conversation with
both answers as `chosen` and `rejected`, which preference training reads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from trainer_core import protocol
from trainer_core.system import files

FILE_NAME = "corrections.jsonl"


class CorrectionStore:
    """Rows are appended; `undo` removes the last one. Another program may edit the file in between."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count(self) -> int:
        """Number of rows."""
        try:
            with self.path.open("rb") as file:
                return sum(1 for line in file if line.strip())
        except OSError:
            return 0

    def add(self, question: Sequence[protocol.Turn], answer: str, rejected: str) -> None:
        """Append a row: the messages up to the question, and both answers. Raises `OSError`."""
        before = [{"role": turn.role, "content": turn.content} for turn in question]
        chosen, wrong = ([*before, {"role": "assistant", "content": text}] for text in (answer, rejected))
        row = json.dumps({"messages": chosen, "chosen": chosen, "rejected": wrong}, ensure_ascii=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with files.retry_sharing_violation(lambda: self.path.open("ab+")) as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                row = row if file.read(1) == b"\n" else f"\n{row}"
            file.write(f"{row}\n".encode("utf-8", "replace"))

    def undo(self) -> None:
        """Remove the last row. Raises `OSError`."""
        rows = [line for line in self.path.read_bytes().splitlines(keepends=True) if line.strip()]
        files.write_atomic(self.path, b"".join(rows[:-1]))
