"""`uninstall` removes only files of Traindeck."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import train_gpu
from app.core.queue import RunQueue
from app.core.settings import SettingsStore
from launcher import places, removing, shortcuts
from trainer_core.train.engine import compilation


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with all folders of an installation, a shortcut and settings."""
    monkeypatch.setattr(places, "ROOT", tmp_path)
    monkeypatch.setattr(places, "STATE_FOLDER", tmp_path / ".venv-setup")
    monkeypatch.setattr(places, "LOG", tmp_path / "logs" / "setup.log")
    monkeypatch.setenv("TRAINDECK_LANG", "en")
    for name in ("HOME", "ENVIRONMENT"):
        monkeypatch.delenv("TRAINDECK_" + name, raising=False)
    (tmp_path / "train_gpu.py").touch()
    for folder in (".venv/bin", ".venv.new/bin", ".venv.old", ".venv-setup", "cache/tokens", "logs", "runs/mine"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").touch()
    shortcut = tmp_path / "shortcut"
    for module in (shortcuts, removing):
        monkeypatch.setattr(module, "shortcut_path", lambda: shortcut)
    line = f'Exec=/bin/sh "{tmp_path / "train_gpu.sh"}"\n'
    shortcut.write_bytes(str(tmp_path).encode("utf-16-le") if os.name == "nt" else line.encode())
    monkeypatch.setenv("TRAINDECK_CONFIG_DIR", str(tmp_path / "settings"))
    for name in ("settings.json", "queue.json", "conversations/1.json"):
        (tmp_path / "settings" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "settings" / name).touch()
    return tmp_path


USER_FILES = {"train_gpu.py", "runs", "settings"}


@pytest.mark.parametrize(
    ("arguments", "remaining"),
    [([], USER_FILES), (["--runs"], USER_FILES - {"runs"}), (["--settings"], USER_FILES - {"settings"})],
)
def test_uninstall_removes_runs_and_settings_only_on_request(
    installation: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], remaining: set[str]
) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "y")
    assert train_gpu.main(["uninstall", *arguments]) == 0
    assert {path.name for path in installation.iterdir()} == remaining


def test_uninstall_removes_the_compile_cache_outside_of_a_home_folder_with_spaces(
    installation: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    user_folder, home = tmp_path_factory.mktemp("user"), installation / "my runs"
    home.mkdir()
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(user_folder))
    monkeypatch.setenv("TRAINDECK_HOME", str(home))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    cache = compilation.cache_folder()
    (cache / "graphs").mkdir(parents=True)
    assert train_gpu.main(["uninstall", "--yes"]) == 0
    assert not cache.exists()


def test_uninstall_without_confirmation_removes_nothing(
    installation: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(installation.rglob("*"))

    def raise_eof(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", raise_eof)
    assert train_gpu.main(["uninstall"]) == 3
    assert sorted(installation.rglob("*")) == before
    assert str(installation / ".venv") in capsys.readouterr().err


def test_uninstall_keeps_shortcuts_of_other_copies_and_unrelated_files(
    installation: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (installation / "shortcut").write_bytes(b"of another copy")
    (installation / "settings" / "mine.txt").touch()
    monkeypatch.setattr("builtins.input", lambda _: "y")
    assert train_gpu.main(["uninstall"]) == 0
    assert f"Kept: {installation / 'settings'} (to remove it: uninstall --settings)" in capsys.readouterr().err
    assert train_gpu.main(["uninstall", "--settings"]) == 0
    assert (installation / "shortcut").exists()
    assert [path.name for path in (installation / "settings").iterdir()] == ["mine.txt"]


@pytest.mark.skipif(os.name == "nt", reason="runs a Linux program; see test_windows_setup.py for Windows")
def test_uninstall_fails_while_the_environment_is_in_use(
    installation: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = installation / ".venv" / "sleeper"
    shutil.copy2(shutil.which("sleep") or "", program)
    before = sorted(installation.rglob("*"))
    with subprocess.Popen([program, "60"]) as running:
        while not Path(f"/proc/{running.pid}/cmdline").read_bytes():  # empty until exec
            time.sleep(0.01)
        assert train_gpu.main(["uninstall", "--yes"]) == 1
        assert str(running.pid) in capsys.readouterr().err
        running.kill()
    assert {path for path in installation.rglob("*") if path.name != "setup.log"} >= set(before)


def test_uninstall_finds_the_settings_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINDECK_CONFIG_DIR", raising=False)
    assert removing.settings_files()[:2] == [SettingsStore().path, RunQueue().path]
