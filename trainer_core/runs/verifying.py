"""`runs verify`: whether the checkpoints of a run, or one of them, are as they were written.

No torch, no Qt.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from trainer_core.messages import Language
from trainer_core.messages.data import reason_in_chinese
from trainer_core.runs import checkpoint_dir, run_dir

_WORDS: Final[dict[Language, tuple[str, str]]] = {"en": ("ok", "damaged"), "zh": ("完好", "已损坏")}


def checkpoints(text: str, root: Path) -> list[Path]:
    """The checkpoints that `text` names: of a run (by folder, by name below `root`, or `latest`), or one by its folder.

    Raises `run.not_found`.
    """
    folder = Path(text)
    if folder.is_dir() and checkpoint_dir.is_checkpoint(folder):
        return [folder.resolve()]
    return checkpoint_dir.list_checkpoints(run_dir.find_run(text, root).checkpoints)


def as_json(folder: Path, problems: dict[str, str | None]) -> str:
    """One line: `files` says of each what is wrong with it, null where nothing is."""
    whole = not any(problems.values())
    return json.dumps({"checkpoint": folder.name, "path": str(folder), "whole": whole, "files": problems})


def as_text(folder: Path, problems: dict[str, str | None], language: Language) -> str:
    """A line, and one below it for each file with which something is wrong."""
    found = [problem for problem in problems.values() if problem]
    ok, damaged = _WORDS[language]
    told = [reason_in_chinese(problem) for problem in found] if language == "zh" else found
    return "\n".join([f"{folder.name}  {damaged if found else ok}", *(f"  {problem}" for problem in told)])
