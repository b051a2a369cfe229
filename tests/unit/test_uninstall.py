"""`uninstall`: what was made is removed, and nothing else."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import train_gpu
from app.core.queue import RunQueue
from app.core.settings import SettingsStore
from launcher import places, removing
from trainer_core.train.engine import compilation


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with all that Traindeck makes, and a shortcut and settings elsewhere."""
    monkeypatch.setattr(places, "ROOT", tmp_path)
    monkeypatch.setattr(places, "STATE_FOLDER", tmp_path / ".venv-setup")
    monkeypatch.setattr(places, "SHORTCUTS", tmp_path / ".venv-setup" / "shortcuts.json")
    monkeypatch.setattr(places, "LOG", tmp_path / "logs" / "setup.log")
    monkeypatch.setenv("TRAINDECK_LANG", "en")
    for name in ("HOME", "ENVIRONMENT"):
        monkeypatch.delenv("TRAINDECK_" + name, raising=False)
    (tmp_path / "train_gpu.py").touch()
    for folder in (".venv/bin", ".venv.new/bin", ".venv.old", ".venv-setup", "cache/tokens", "logs", "runs/mine"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").touch()
    (tmp_path / "Traindeck.lnk").write_bytes(b"L" + str(tmp_path).encode("utf-16-le"))
    monkeypatch.setenv("TRAINDECK_CONFIG_DIR", str(tmp_path / "settings"))
    (tmp_path / "settings").mkdir()
    for name in ("settings.json", "queue.json"):
        (tmp_path / "settings" / name).touch()
    places.write_json(places.SHORTCUTS, {"made": [str(tmp_path / "Traindeck.lnk")]})
    return tmp_path


KEPT = {"train_gpu.py", "runs", "settings"}


@pytest.mark.parametrize(
    ("arguments", "left"), [([], KEPT), (["--runs"], KEPT - {"runs"}), (["--settings"], KEPT - {"settings"})]
)
def test_uninstall_removes_what_was_made_and_runs_and_settings_only_when_asked_to(
    made: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], left: set[str]
) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "y")
    assert train_gpu.main(["uninstall", *arguments]) == 0
    assert {path.name for path in made.iterdir()} == left


def test_uninstall_removes_compiled_code_that_a_space_in_the_path_put_elsewhere(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    person, home = tmp_path_factory.mktemp("person"), made / "my runs"
    home.mkdir()
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(person))
    monkeypatch.setenv("TRAINDECK_HOME", str(home))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    compiled = compilation.cache_folder()
    (compiled / "graphs").mkdir(parents=True)
    assert train_gpu.main(["uninstall", "--yes"]) == 0
    assert not compiled.exists()


def test_uninstall_removes_nothing_where_nobody_agrees(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(made.rglob("*"))

    def nobody(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", nobody)
    assert train_gpu.main(["uninstall"]) == 3
    assert sorted(made.rglob("*")) == before
    assert str(made / ".venv") in capsys.readouterr().err


def test_uninstall_leaves_what_somebody_else_put_beside_it(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shortcut that another copy of Traindeck has made since then, and files in the folder of the settings."""
    (made / "Traindeck.lnk").write_bytes("C:\\another Traindeck".encode("utf-16-le"))
    (made / "settings" / "mine.txt").touch()
    monkeypatch.setattr("builtins.input", lambda _: "y")
    assert train_gpu.main(["uninstall"]) == 0
    assert f"kept: {made / 'settings'}" in capsys.readouterr().err
    assert train_gpu.main(["uninstall", "--settings"]) == 0
    assert (made / "Traindeck.lnk").exists()
    assert [path.name for path in (made / "settings").iterdir()] == ["mine.txt"]


@pytest.mark.skipif(os.name == "nt", reason="the program is one of Linux; test_windows_setup.py has one of Windows")
def test_uninstall_removes_nothing_while_something_runs_from_the_environment(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = made / ".venv" / "sleeper"
    shutil.copy2(shutil.which("sleep") or "", program)
    before = sorted(made.rglob("*"))
    with subprocess.Popen([program, "60"]) as running:
        while not Path(f"/proc/{running.pid}/cmdline").read_bytes():  # a program that has just begun has none yet
            time.sleep(0.01)
        assert train_gpu.main(["uninstall", "--yes"]) == 1
        assert str(running.pid) in capsys.readouterr().err
        running.kill()
    assert {path for path in made.rglob("*") if path.name != "setup.log"} >= set(before)


def test_uninstall_looks_for_the_settings_where_the_window_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINDECK_CONFIG_DIR", raising=False)
    assert removing.settings_files() == [SettingsStore().path, RunQueue().path]
