"""What a console of Windows does to a program in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODES = """
import ctypes, sys
from trainer_core.machine.quick_edit import without_quick_edit
console = ctypes.windll.kernel32.CreateFileW("CONIN$", 0xC0000000, 3, None, 3, 0, None)
ctypes.windll.kernel32.SetConsoleMode(console, 0xC7)
def quick_edit():
    mode = ctypes.c_uint32()
    assert ctypes.windll.kernel32.GetConsoleMode(console, ctypes.byref(mode))
    return bool(mode.value & 0x40)
found = [quick_edit()]
with without_quick_edit():
    found.append(quick_edit())
found.append(quick_edit())
open(sys.argv[1], "w").write(str(found))
"""


@pytest.mark.in_english
def test_a_click_into_the_console_cannot_hold_up_what_prints_there(tmp_path: Path) -> None:
    flags = getattr(subprocess, "CREATE_NEW_CONSOLE", 0)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MODES, str(tmp_path / "modes")]
    subprocess.run(command, env=env, creationflags=flags, timeout=60, check=True)
    assert (tmp_path / "modes").read_text(encoding="ascii") == "[True, False, True]"
