"""Results of checks, as message codes with parameters."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from trainer_core.messages import Value
from trainer_core.system.program_files import IS_INSTALLED, PROGRAM

ProbeResults = list[dict[str, Any]]

WINDOWS: Final = os.name == "nt"
GIB: Final = 2**30
_PIP_COMMAND: Final = (  # README.md explains ./traindeck and BUILD
    "pip install --force-reinstall ./traindeck --extra-index-url https://download.pytorch.org/whl/BUILD"
)
SETUP_COMMAND: Final = _PIP_COMMAND if IS_INSTALLED else f"{PROGRAM} setup"
REPAIR_COMMAND: Final = _PIP_COMMAND if IS_INSTALLED else f"{SETUP_COMMAND} --torch auto"
"""Installs the torch build for the driver and GPU."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    level: Literal["ok", "note", "problem"]
    code: str  # message code
    params: dict[str, Value] = field(default_factory=dict)
    detail: str = ""  # technical, not translated


def ok(code: str, **params: Value) -> Finding:
    return Finding("ok", code, params)


def note(code: str, **params: Value) -> Finding:
    return Finding("note", code, params)


def problem(code: str, detail: str = "", **params: Value) -> Finding:
    return Finding("problem", code, params, detail)


def format_gib(size: int) -> str:
    return f"{size / GIB:.1f}"
