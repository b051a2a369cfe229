"""Command `shortcut` on Linux: desktop entries."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import train_gpu
from launcher import places
from launcher.shortcuts import make_shortcut, shortcut_path
from trainer_core import texts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="desktop entries are for Linux")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = """我的 模型 & co; 50% %f $HOME "a" 'b' `c` back\\slash\ttab"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone whose train_gpu.sh writes `started`, and a user without settings."""
    folder, home = tmp_path / FOLDER, tmp_path / "home"
    (folder / "assets").mkdir(parents=True)
    home.mkdir()
    for name in ("traindeck.desktop", "traindeck.png"):
        shutil.copy(ROOT / "assets" / name, folder / "assets")
    (folder / "train_gpu.sh").write_text(': >"$(dirname "$0")/started"\n', encoding="utf-8")
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "TRAINDECK_HOME", "TRAINDECK_ENVIRONMENT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(places, "ROOT", folder)
    monkeypatch.setattr(places, "STATE_FOLDER", folder / ".venv-setup")
    monkeypatch.setattr(places, "LOG", folder / "logs" / "setup.log")
    return folder


@pytest.mark.skipif(not shutil.which("gio"), reason="needs gio, of libglib2.0-bin")
def test_the_desktop_starts_a_clone_in_a_folder_with_special_characters(clone: Path) -> None:
    assert make_shortcut() == 0
    subprocess.run(["gio", "launch", shortcut_path()], check=True, timeout=60)
    end = time.monotonic() + 20
    while not (clone / "started").exists():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.skipif(not shutil.which("desktop-file-validate"), reason="needs desktop-file-utils")
def test_the_entries_are_valid(clone: Path) -> None:
    make_shortcut()
    for entry in (shortcut_path(), ROOT / "assets" / "traindeck.desktop"):
        result = subprocess.run(["desktop-file-validate", entry], capture_output=True, text=True, check=False)
        assert result.stdout + result.stderr == ""


def test_uninstall_removes_the_entry_of_this_copy_only(clone: Path) -> None:
    make_shortcut()
    assert shortcut_path() == Path.home() / ".local" / "share" / "applications" / "traindeck.desktop"
    assert train_gpu.main(["uninstall", "--yes"]) == 0
    assert not shortcut_path().exists()
    make_shortcut()
    shortcut_path().write_text("[Desktop Entry]\nExec=/bin/sh /another/train_gpu.sh\n", encoding="utf-8")
    assert train_gpu.main(["uninstall", "--yes"]) == 0
    assert shortcut_path().exists()


def test_the_entry_describes_traindeck_as_the_window_does() -> None:
    lines = (ROOT / "assets" / "traindeck.desktop").read_text(encoding="utf-8").splitlines()
    assert f"Comment={texts.get('help.subtitle', 'en')}" in lines
    assert f"Comment[zh_CN]={texts.get('help.subtitle', 'zh')}" in lines
