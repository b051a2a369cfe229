"""The window on the Qt platform `windows` with a real trainer."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer_core import protocol
from trainer_core.runs import checkpoint_dir, run_dir

ROOT = Path(__file__).resolve().parents[2]
THEMES = r"Software\Microsoft\Windows\CurrentVersion\Themes\Personalize"
SCRIPT = Path(__file__).with_name("window_script.py")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "我的 文本.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. 春眠不觉晓。\n" * 2000, encoding="gb18030")
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Folder for pictures of the pages: TRAINDECK_PICTURES, else temporary."""
    folder = Path(os.environ.get("TRAINDECK_PICTURES") or tmp_path / "pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def open_window(script: str, data: Path, pictures: Path, home: Path) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONUTF8", "QT_QPA_PLATFORM")}
    env |= {"TRAINDECK_HOME": str(home), "TRAINDECK_CONFIG_DIR": str(home / "config"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-u", "-X", "utf8", str(SCRIPT), script, str(data), str(pictures), "zh"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, encoding="utf-8")


def test_a_run_can_be_started_stopped_resumed_killed_and_closed(data: Path, pictures: Path, tmp_path: Path) -> None:
    window = open_window("run", data, pictures, tmp_path / "家 home")
    out, err = window.communicate(timeout=380)
    assert out.splitlines() == [
        "platform windows",
        "plots repainted True",
        "steps in order True",
        "killed True",
        "closing",
    ], err
    assert window.returncode == 0, err
    run = run_dir.RunDir(tmp_path / "家 home" / "runs" / "窗口 run")
    [*_, last] = [protocol.decode_event(line) for line in run.events.read_bytes().splitlines()]
    assert isinstance(last, protocol.Done)
    assert last.reason == "stopped"
    good, bad = checkpoint_dir.latest_valid(run.checkpoints)
    assert good is not None
    assert good.name == checkpoint_dir.folder_name(last.steps)
    assert not bad


@pytest.mark.in_chinese
def test_a_dropped_file_becomes_training_data(data: Path, pictures: Path, tmp_path: Path) -> None:
    """Uses the drag and drop of Windows, and the mouse of this desktop for some seconds."""
    window = open_window("drop", data, pictures, tmp_path / "家 home")
    out, err = window.communicate(timeout=300)
    assert out.splitlines() == ["drop indicator True", "dropped True"], err
    assert window.returncode == 0, err


@pytest.fixture
def restored_theme() -> Iterator[None]:
    """Restores the theme of Windows after the test."""
    import winreg

    with winreg.CreateKey(winreg.HKEY_CURRENT_USER, THEMES) as key:  # type: ignore[attr-defined]
        before = None
        with contextlib.suppress(OSError):
            before, _ = winreg.QueryValueEx(key, "AppsUseLightTheme")  # type: ignore[attr-defined]
        yield
        if before is not None:
            winreg.SetValueEx(key, "AppsUseLightTheme", 0, winreg.REG_DWORD, before)  # type: ignore[attr-defined]
        else:
            winreg.DeleteValue(key, "AppsUseLightTheme")  # type: ignore[attr-defined]


@pytest.mark.in_chinese
@pytest.mark.usefixtures("restored_theme")
def test_the_theme_follows_windows(data: Path, pictures: Path, tmp_path: Path) -> None:
    window = open_window("theme", data, pictures, tmp_path / "家 home")
    out, err = window.communicate(timeout=300)
    assert out.splitlines() == ["dark", "light"], err
    assert window.returncode == 0, err


@pytest.mark.in_chinese
def test_a_trainer_whose_window_is_killed_saves_a_checkpoint_and_exits(
    data: Path, pictures: Path, tmp_path: Path
) -> None:
    window = open_window("train", data, pictures, tmp_path / "家 home")
    assert window.stdout is not None
    assert window.stdout.readline().startswith("train"), window.communicate()[1]
    window.kill()  # the .venv launcher; its job object kills the window but not the window's children
    window.wait(30)
    run = run_dir.RunDir(tmp_path / "家 home" / "runs" / "窗口 run")
    until = time.monotonic() + 60
    while (good := checkpoint_dir.latest_valid(run.checkpoints)[0]) is None and time.monotonic() < until:
        time.sleep(0.5)
    assert good is not None
