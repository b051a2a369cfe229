"""Brings traindeck_zh_CN.ts up to date with the sources and compiles it: `python -m app.i18n.update`.

Afterwards, translate what is marked `unfinished` in the .ts file (Qt Linguist, or an editor), and run it
again. Both files are committed, so that nobody needs the tools to start the window.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import PySide6

from app.i18n import FOLDER

_TS = FOLDER / "traindeck_zh_CN.ts"


def sources() -> list[Path]:
    """All files of the window, in a stable order."""
    return sorted(FOLDER.parent.rglob("*.py"))


def update() -> None:
    """Take new and changed texts into the .ts file; texts that are gone are dropped."""
    _tool("lupdate", *map(str, sources()), "-ts", str(_TS), "-no-obsolete", "-locations", "none", "-silent")


def compile_ts() -> None:
    """Make the .qm file."""
    _tool("lrelease", str(_TS), "-qm", str(_TS.with_suffix(".qm")), "-silent")


def _tool(name: str, *arguments: str) -> None:
    # The program itself instead of the pyside6-… script: that is not there without the venv's bin on PATH.
    folder = Path(PySide6.__file__).resolve().parent
    program = folder / f"{name}.exe" if sys.platform == "win32" else folder / name
    subprocess.run([str(program), *arguments], check=True, cwd=FOLDER.parent.parent)


if __name__ == "__main__":
    update()
    compile_ts()
