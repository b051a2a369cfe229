"""What was found, as data: codes of messages/ with what they are about."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from trainer_core.messages import Value

Level = Literal["ok", "note", "problem"]
Answers = list[dict[str, Any]]

WINDOWS: Final = os.name == "nt"
GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `code` and `params` are worded by messages.py."""

    level: Level
    code: str
    params: dict[str, Value] = field(default_factory=dict)
    detail: str = ""  # technical, untranslated

    def document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"level": self.level, "code": self.code, "params": self.params, "detail": self.detail}


def ok(code: str, **params: Value) -> Finding:
    return Finding("ok", code, params)


def note(code: str, **params: Value) -> Finding:
    return Finding("note", code, params)


def problem(code: str, detail: str = "", **params: Value) -> Finding:
    return Finding("problem", code, params, detail)


def launcher() -> str:
    """What people type to start Traindeck."""
    return "train_gpu.bat" if WINDOWS else "./train_gpu.sh"


def gib(size: int) -> str:
    return f"{size / GIB:.1f}"
