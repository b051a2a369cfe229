"""Programs in a Windows console."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.trainer_process import TINY, environment
from trainer_core.messages import ExitCode
from trainer_core.runs import checkpoint_dir

ROOT = Path(__file__).resolve().parents[2]
MODES = """
import ctypes, sys
from trainer_core.system.windows_console import disable_quick_edit
console = ctypes.windll.kernel32.CreateFileW("CONIN$", 0xC0000000, 3, None, 3, 0, None)
ctypes.windll.kernel32.SetConsoleMode(console, 0xC7)
def quick_edit():
    mode = ctypes.c_uint32()
    assert ctypes.windll.kernel32.GetConsoleMode(console, ctypes.byref(mode))
    return bool(mode.value & 0x40)
found = [quick_edit()]
with disable_quick_edit():
    found.append(quick_edit())
found.append(quick_edit())
open(sys.argv[1], "w").write(str(found))
"""

# Closing a console calls the last registered handler in a new thread.
CLOSE_CONSOLE = """
import runpy, sys, threading, time
from pathlib import Path
from trainer_core.system import windows_console
def close():
    events = Path(sys.argv[-1], "events.jsonl")
    while not (events.exists() and b'"type":"step"' in events.read_bytes()):
        time.sleep(0.1)
    windows_console._ctrl_handler(2)
threading.Thread(target=close, daemon=True).start()
runpy.run_module("trainer_core", run_name="__main__", alter_sys=True)
"""


@pytest.mark.in_english
def test_quick_edit_is_disabled_inside_the_context(tmp_path: Path) -> None:
    flags = getattr(subprocess, "CREATE_NEW_CONSOLE", 0)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MODES, str(tmp_path / "modes")]
    subprocess.run(command, env=env, creationflags=flags, timeout=60, check=True)
    assert (tmp_path / "modes").read_text(encoding="ascii") == "[True, False, True]"


@pytest.mark.in_chinese
def test_closing_the_console_saves_a_checkpoint(tmp_path: Path) -> None:
    """The handler is called directly, because Wine kills the processes of a closed console without calling it."""
    run = tmp_path / "runs" / "关 closed"
    data = tmp_path / "文.txt"
    data.write_text("春眠不觉晓，处处闻啼鸟。\n" * 3000, encoding="utf-8")
    arguments = [*TINY, "--data", str(data), "--max-steps", "100000", "--restarts", "0", "--run-dir", str(run)]
    command = [sys.executable, "-c", CLOSE_CONSOLE, "train", *arguments]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, timeout=120, check=False)
    assert done.returncode == ExitCode.STOPPED, done.stderr
    good, _ = checkpoint_dir.latest_valid(run / "checkpoints")
    assert good is not None
