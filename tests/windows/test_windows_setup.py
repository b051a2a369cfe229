"""train_gpu.bat as a person uses it: typed lines, odd folders, Pythons of every kind, broken set-ups."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from batch import OTHER_VERSION, SYSTEM, Batch, write_program
from stand_ins import ROOT

from launcher import shortcuts
from launcher.places import windows_long_paths

STORE = """
import sys
print("Python was not found; run without arguments to install from the Microsoft Store")
sys.exit(9009)
"""


@pytest.fixture
def programs(project: Batch) -> Iterator[Path]:
    """A folder at the front of the PATH."""
    yield project.bin
    shutil.rmtree(project.bin)
    project.bin.mkdir()


# --- starting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "arguments"),
    [
        ('train --run-name "a b"', ["train", "--run-name", "a b"]),
        ('train "文 & 本" "a|b" "<c>" "(d)"', ["train", "文 & 本", "a|b", "<c>", "(d)"]),
        ('train 100% wow! 用户=测试,x "a ^ b"', ["train", "100%", "wow!", "用户=测试,x", "a ^ b"]),
        (r'train "say \"hi\"" "" "C:\a b\\"', ["train", 'say "hi"', "", "C:\\a b\\"]),
    ],
)
def test_arguments_reach_the_trainer_as_they_were_typed(project: Batch, typed: str, arguments: list[str]) -> None:
    done = project.run(typed, stdin='{"command": "stop"}\n停\n')
    assert done.returncode == 3, done.stderr
    words = json.loads(done.stdout)
    assert words["args"] == arguments
    assert words["stdin"] == '{"command": "stop"}\n停\n'
    assert words["utf8"] == 1


def test_a_second_start_sets_nothing_up(project: Batch) -> None:
    before = project.log
    done = project.run("train")
    assert (done.returncode, done.stderr) == (3, "")
    assert project.log == before


@pytest.mark.in_english
def test_the_window_starts_where_the_folder_of_logs_was_deleted(project: Batch) -> None:
    app = project.root / "app"
    app.mkdir()
    app.joinpath("__init__.py").touch()
    app.joinpath("__main__.py").write_text("print('窗口 there')", encoding="utf-8")
    (project.root / "logs").rename(project.root / "logs of before")
    started = project.run("")
    assert started.returncode == 0, started.stderr
    assert (project.root / "logs" / "window.log").read_text(encoding="utf-8") == "窗口 there\n"
    for folder in (app, project.root / "logs"):
        shutil.rmtree(folder)
    (project.root / "logs of before").rename(project.root / "logs")


def test_what_pip_and_the_launcher_say_is_logged_as_utf_8(project: Batch) -> None:
    assert "用户 测试 (x86) & !" in project.log
    assert "Successfully installed torch-2.13.0+cpu" in project.log


# --- broken set-ups ------------------------------------------------------------------------------------------


@pytest.mark.in_english
def test_a_set_up_that_was_killed_is_finished_by_the_next_start(tmp_path: Path) -> None:
    project = Batch(tmp_path, "killed")
    child = project.begin("setup")
    until = time.monotonic() + 120
    while not (project.root / ".venv" / "Lib" / "site-packages" / "pip").exists() and time.monotonic() < until:
        time.sleep(0.1)
    tree = psutil.Process(child.pid)
    for process in [*tree.children(recursive=True), tree]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    child.wait(30)
    done = project.run("train")
    assert done.returncode == 3, done.stderr
    assert "the previous setup did not finish" in done.stderr


@pytest.mark.in_english
def test_a_half_installed_package_is_repaired_by_the_python_that_lies_in_the_same_venv(project: Batch) -> None:
    site = project.root / ".venv" / "Lib" / "site-packages"
    (site / "small-1.0.dist-info" / "INSTALLER").unlink()
    state = project.root / ".venv" / "traindeck.json"
    state.write_text(state.read_text(encoding="utf-8").replace("true", "false", 1), encoding="utf-8")
    done = project.run("train")
    assert done.returncode == 3, done.stderr
    assert "small-1.0.dist-info is only partially installed" in done.stderr
    assert (site / "small-1.0.dist-info" / "INSTALLER").exists()


# --- which Python --------------------------------------------------------------------------------------------


@pytest.fixture
def unset(tmp_path: Path) -> Batch:
    """A project that was never set up."""
    return Batch(tmp_path, "no python")


def test_without_any_python_it_says_which_one_to_install_and_from_where(unset: Batch) -> None:
    done = unset.run("train", env=unset.without_python())
    assert done.returncode == 1
    assert "Traindeck needs Python 3.11, 3.12 or 3.13 (64 bit), and found none." in done.stdout
    assert "https://www.python.org/downloads/windows/" in done.stdout


@pytest.mark.in_english
def test_the_placeholder_of_the_store_counts_as_no_python(unset: Batch) -> None:
    store = unset.bin / "Microsoft" / "WindowsApps"
    write_program(store / "python.exe", STORE)
    done = unset.run("train", env=unset.without_python(store))
    assert done.returncode == 1
    assert "found none" in done.stdout


@pytest.mark.in_english
def test_a_python_bat_in_front_does_not_swallow_the_start(project: Batch, programs: Path) -> None:
    (programs / "python.bat").write_text("@echo the shim took over\r\n@exit /b 0\r\n", encoding="ascii")
    done = project.run("train")
    assert done.returncode == 3
    assert "took over" not in done.stdout


@pytest.mark.in_english
def test_a_python_that_does_not_fit_is_passed_over_with_its_reason(unset: Batch) -> None:
    """The launcher offers one that is too new, the PATH one that is too old, the Store and a broken one."""
    folders = [unset.bin, unset.bin / "old", unset.bin / "Microsoft" / "WindowsApps"]
    write_program(unset.bin / "python.exe", OTHER_VERSION.format(version="(3, 14, 0)"))
    write_program(folders[1] / "python.exe", OTHER_VERSION.format(version="(3, 10, 4)"))
    write_program(folders[2] / "python.exe", STORE)
    (unset.bin / "python3.exe").write_bytes(b"this is no program")
    done = unset.run("train", env=unset.without_python(*folders))
    assert done.returncode == 1
    assert "Traindeck needs Python 3.11, 3.12 or 3.13. None was found:" in done.stderr
    assert "Python 3.14 is too new" in done.stderr
    assert "Python 3.10 is too old" in done.stderr
    assert "python.exe: Microsoft Store placeholder" in done.stderr
    assert "python3.exe: does not run" in done.stderr
    assert "Install Python 3.12 (64 bit)" in done.stderr


@pytest.mark.in_english
@pytest.mark.parametrize(
    ("variable", "folder"),
    [
        ("LOCALAPPDATA", "Programs\\Python\\Python310"),
        ("APPDATA", "uv\\python\\cpython-3.10.4-windows"),
        ("USERPROFILE", ".pyenv\\pyenv-win\\versions\\3.10.4"),
        ("USERPROFILE", "miniconda3"),
    ],
)
def test_a_python_is_found_where_installers_put_it(unset: Batch, tmp_path: Path, variable: str, folder: str) -> None:
    """It is too old, so that its finder says so."""
    place = tmp_path / "user & 用户"
    write_program(place / folder / "python.exe", OTHER_VERSION.format(version="(3, 10, 4)"))
    done = unset.run("train", env={**unset.without_python(), variable: str(place)})
    assert done.returncode == 1
    assert "Python 3.10 is too old" in done.stderr


def test_one_that_fits_is_found_behind_one_that_is_too_new(project: Batch) -> None:
    assert "Python 3.14 is too new" in project.log


# --- odd folders ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a & b ! ^ (x86)", "长" * 30 + "\\" + "d" * 90])
def test_it_starts_from_a_folder_that_batch_files_trip_over(project: Batch, tmp_path: Path, name: str) -> None:
    """What was set up elsewhere is copied there. The second path is longer than 200 characters."""
    moved = project.copied(tmp_path / name)
    done = moved.run('train "a b"')
    assert (done.returncode, done.stderr) == (3, "")
    assert json.loads(done.stdout)["args"] == ["train", "a b"]
    assert Path(json.loads(done.stdout)["cwd"]) == SYSTEM  # where it was typed: relative paths are meant from there


LOCAL = Path("C:\\用 & (户)")


class Deep(Batch):
    """Below a path that leaves no room for packages, and without a word about where they are to be."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "长" * 30 + "\\" + "d" * 90)

    def environment(self, **more: str) -> dict[str, str]:
        environment = super().environment(**{"LOCALAPPDATA": str(LOCAL), **more})
        del environment["TRAINDECK_ENVIRONMENT"]
        return environment


@pytest.fixture
def local() -> Iterator[Path]:
    """A short folder for what programs keep, where nothing is kept yet."""
    shutil.rmtree(LOCAL, ignore_errors=True)
    LOCAL.mkdir()
    yield LOCAL
    shutil.rmtree(LOCAL)


@pytest.mark.in_chinese
@pytest.mark.skipif(windows_long_paths(), reason="this Windows allows long paths")
def test_it_is_set_up_from_nothing_below_a_path_of_over_200_characters_with_the_packages_elsewhere(
    tmp_path: Path, local: Path
) -> None:
    project = Deep(tmp_path)
    assert len(str(project.root)) > 200
    done = project.run('train "a b"')
    assert done.returncode == 3, done.stderr
    home = next((local / "Traindeck").iterdir())
    assert f"Packages: {home}" in done.stderr
    assert f"Runs: {Path.home() / 'Traindeck'} " in done.stderr
    assert project.folders() == set()
    by_note = {**project.without_python(), "LOCALAPPDATA": str(local)}
    again = project.run("train", env=by_note)  # found by what home.txt says
    assert (again.returncode, again.stderr) == (3, "")
    project.want("2.0")
    assert project.run("train").returncode == 3
    assert (home / ".venv" / "Lib" / "site-packages" / "small-2.0.dist-info" / "INSTALLER").exists()
    removed = project.run("uninstall --yes")
    assert removed.returncode == 0, removed.stderr
    assert not (home / ".venv" / "Lib").exists()


# --- shortcut and removal ------------------------------------------------------------------------------------


def test_a_shortcut_is_a_link_to_the_batch_file_with_our_icon(tmp_path: Path) -> None:
    target, icon = tmp_path / "用户 (x86)" / "train_gpu.bat", ROOT / "assets" / "traindeck.ico"
    target.parent.mkdir()
    target.touch()
    shortcuts.write_shortcut(tmp_path / "Traindeck 快捷.lnk", target, icon)
    content = (tmp_path / "Traindeck 快捷.lnk").read_bytes()
    assert content.startswith(b"L\0\0\0")  # HeaderSize of [MS-SHLLINK]
    assert str(target.parent).encode("utf-16-le") in content
    assert "traindeck.ico".encode("utf-16-le") in content
    assert shortcuts.desktop().is_dir()


@pytest.mark.in_english
def test_uninstall_removes_what_was_made_but_not_the_runs(project: Batch, tmp_path: Path) -> None:
    copy = project.copied(tmp_path / "to remove")
    for folder in ("cache", "runs", ".venv.new"):
        (copy.root / folder).mkdir()
    kept = copy.run("uninstall", stdin="n\n")
    assert kept.returncode == 3
    python = [str(copy.venv / "Scripts" / "python.exe"), "-c", "import time; time.sleep(100)"]
    with subprocess.Popen(python) as running:
        in_use = copy.run("uninstall --yes")
        assert in_use.returncode == 1
        assert f"Traindeck is running (process {running.pid})" in in_use.stderr
        running.kill()
    assert (copy.venv / "Lib").exists()
    assert copy.run("uninstall --yes").returncode == 0
    assert not (copy.root / ".venv" / "Lib").exists()
    assert not (copy.root / ".venv.new").exists()
    assert not (copy.root / "cache").exists()
    assert (copy.root / "runs").exists()
    assert (copy.root / "train_gpu.bat").exists()
