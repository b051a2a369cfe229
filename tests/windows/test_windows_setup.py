"""train_gpu.bat: command lines, folders, Python selection, interrupted setups."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from batch_project import OTHER_VERSION, SYSTEM, BatchProject, write_program
from launcher_project import ROOT

from launcher import shortcuts
from launcher.places import windows_long_paths

STORE_PLACEHOLDER = """
import sys
print("Python was not found; run without arguments to install from the Microsoft Store")
sys.exit(9009)
"""


@pytest.fixture
def programs(project: BatchProject) -> Iterator[Path]:
    """The first folder on the PATH."""
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
def test_arguments_are_passed_to_the_trainer_unchanged(project: BatchProject, typed: str, arguments: list[str]) -> None:
    done = project.run(typed, stdin='{"command": "stop"}\n停\n')
    assert done.returncode == 3, done.stderr
    received = json.loads(done.stdout)
    assert received["args"] == arguments
    assert received["stdin"] == '{"command": "stop"}\n停\n'
    assert received["utf8"] == 1


def test_a_second_start_skips_the_setup(project: BatchProject) -> None:
    before = project.log
    done = project.run("train")
    assert (done.returncode, done.stderr) == (3, "")
    assert project.log == before


@pytest.mark.in_english
def test_the_window_starts_after_the_log_folder_was_deleted(project: BatchProject) -> None:
    app = project.root / "app"
    app.mkdir()
    app.joinpath("__init__.py").touch()
    app.joinpath("__main__.py").write_text("print('窗口 open')", encoding="utf-8")
    (project.root / "logs").rename(project.root / "previous logs")
    started = project.run("")
    assert started.returncode == 0, started.stderr
    assert (project.root / "logs" / "window.log").read_text(encoding="utf-8") == "窗口 open\n"
    for folder in (app, project.root / "logs"):
        shutil.rmtree(folder)
    (project.root / "previous logs").rename(project.root / "logs")


def test_output_of_pip_and_the_launcher_is_logged_as_utf_8(project: BatchProject) -> None:
    assert "用户 测试 (x86) & !" in project.log
    assert "+ torch==2.13.0+cpu" in project.log


# --- interrupted setups ------------------------------------------------------------------------------------------


@pytest.mark.in_english
def test_a_killed_setup_is_completed_at_the_next_start(tmp_path: Path) -> None:
    project = BatchProject(tmp_path, "killed")
    child = project.start("setup")
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
def test_a_partially_installed_package_is_repaired(project: BatchProject) -> None:
    site = project.root / ".venv" / "Lib" / "site-packages"
    (site / "small-1.0.dist-info" / "INSTALLER").unlink()
    state = project.root / ".venv" / "traindeck.json"
    state.write_text(state.read_text(encoding="utf-8").replace("true", "false", 1), encoding="utf-8")
    done = project.run("train")
    assert done.returncode == 3, done.stderr
    assert "small-1.0 is incomplete or damaged" in done.stderr
    assert (site / "small-1.0.dist-info" / "INSTALLER").exists()


# --- Python --------------------------------------------------------------------------------------------


@pytest.fixture
def new_project(tmp_path: Path) -> BatchProject:
    """A project that was never set up."""
    return BatchProject(tmp_path, "no python")


def test_without_python_the_message_names_version_and_download_page(new_project: BatchProject) -> None:
    done = new_project.run("train", env=new_project.without_python())
    assert done.returncode == 1
    assert "Traindeck needs Python 3.11, 3.12 or 3.13 (64 bit). It found none" in done.stdout
    assert "https://www.python.org/downloads/windows/" in done.stdout


@pytest.mark.in_english
def test_the_microsoft_store_placeholder_is_ignored(new_project: BatchProject) -> None:
    store = new_project.bin / "Microsoft" / "WindowsApps"
    write_program(store / "python.exe", STORE_PLACEHOLDER)
    done = new_project.run("train", env=new_project.without_python(store))
    assert done.returncode == 1
    assert "found none" in done.stdout


FAKE_CURL = """
import shutil, sys
print(sys.argv[-1], file=open(r"{log}", "a"))
shutil.copy(r"{wheel}", sys.argv[sys.argv.index("-o") + 1]) if "tuna" in sys.argv[-1] else sys.exit(6)
"""
FAKE_CERTUTIL = """
import hashlib, sys
digest = hashlib.sha256(open(sys.argv[2], "rb").read()).hexdigest()
print("SHA256 hash of file:")
print("{right}" if digest == "{expected}" else digest)
print("CertUtil: -hashfile command completed successfully.")
"""
FAKE_TAR = """
import sys, zipfile
with zipfile.ZipFile(sys.argv[2]) as archive:
    open(sys.argv[4] + "/uv.exe", "wb").write(archive.read(sys.argv[-1]))
"""
FAKE_UV = """
import os, shutil, sys
folder = sys.argv[sys.argv.index("--install-dir") + 1] + "/cpython-3.12-windows-x86_64-none"
os.makedirs(folder)
shutil.copy(r"{python}", folder + "/python.exe")
"""


@pytest.mark.in_english
@pytest.mark.parametrize("damaged", [False, True])
def test_without_python_one_is_downloaded_with_what_windows_has(new_project: BatchProject, damaged: bool) -> None:
    """This machine has no curl, and no access to the download: programs of the same names stand for them."""
    programs = new_project.bin
    write_program(programs / "python-3.10.exe", OTHER_VERSION.format(version="(3, 10, 4)"))
    write_program(programs / "fake-uv.exe", FAKE_UV.format(python=programs / "python-3.10.exe"))
    wheel = new_project.root / "uv wheel"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(programs / "fake-uv.exe", "uv-0.13.9.data/scripts/uv.exe")
    expected = "" if damaged else hashlib.sha256(wheel.read_bytes()).hexdigest()
    right = re.search("[0-9a-f]{64}", (new_project.root / "train_gpu.bat").read_text(encoding="ascii"))
    assert right
    log = new_project.root / "urls.txt"
    write_program(programs / "curl.exe", FAKE_CURL.format(wheel=wheel, log=log))
    write_program(programs / "certutil.exe", FAKE_CERTUTIL.format(right=right[0], expected=expected))
    write_program(programs / "tar.exe", FAKE_TAR)
    done = new_project.run("train", env=new_project.without_python(programs))
    urls = log.read_text(encoding="utf-8").split()
    assert [url.split("/")[2] for url in urls][:2] == ["files.pythonhosted.org", "pypi.tuna.tsinghua.edu.cn"]
    assert "Downloading one for Traindeck" in done.stdout
    assert done.returncode == 1
    if damaged:
        assert not (new_project.root / ".venv-setup" / "uv-0.13.9" / "bin" / "uv.exe").exists()
        assert "could not download one" in done.stdout
    else:  # the downloaded Python runs the launcher, which says that it is too old
        assert len(urls) == 2
        assert "Python 3.10 (64-bit) is not supported" in done.stderr


@pytest.mark.in_english
def test_a_python_bat_on_the_path_is_ignored(project: BatchProject, programs: Path) -> None:
    (programs / "python.bat").write_text("@echo the shim took over\r\n@exit /b 0\r\n", encoding="ascii")
    done = project.run("train")
    assert done.returncode == 3
    assert "took over" not in done.stdout


@pytest.mark.in_english
def test_each_rejected_python_is_reported_with_the_reason(new_project: BatchProject) -> None:
    """The PATH has a Python that is too new, one that is too old, the Store placeholder and a broken file."""
    folders = [new_project.bin, new_project.bin / "old", new_project.bin / "Microsoft" / "WindowsApps"]
    write_program(new_project.bin / "python.exe", OTHER_VERSION.format(version="(3, 14, 0)"))
    write_program(folders[1] / "python.exe", OTHER_VERSION.format(version="(3, 10, 4)"))
    write_program(folders[2] / "python.exe", STORE_PLACEHOLDER)
    (new_project.bin / "python3.exe").write_bytes(b"not a program")
    done = new_project.run("train", env=new_project.without_python(*folders))
    assert done.returncode == 1
    assert "Traindeck needs Python 3.11, 3.12 or 3.13 (64-bit). None was found:" in done.stderr
    assert "Python 3.14 (64-bit) is not supported" in done.stderr
    assert "Python 3.10 (64-bit) is not supported" in done.stderr
    assert "WindowsApps" not in done.stderr
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
def test_pythons_are_found_in_the_folders_of_installers(
    new_project: BatchProject, tmp_path: Path, variable: str, folder: str
) -> None:
    """It is too old, so the launcher reports that it was found."""
    base = tmp_path / "user & 用户"
    write_program(base / folder / "python.exe", OTHER_VERSION.format(version="(3, 10, 4)"))
    done = new_project.run("train", env={**new_project.without_python(), variable: str(base)})
    assert done.returncode == 1
    assert "Python 3.10 (64-bit) is not supported" in done.stderr


def test_a_supported_python_is_found_after_a_too_new_one(project: BatchProject) -> None:
    assert "Python 3.14 (64-bit) is not supported" in project.log


# --- folders ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a & b ! ^ (x86)", "长" * 30 + "\\" + "d" * 90])
def test_start_from_a_folder_with_special_characters_or_a_long_path(
    project: BatchProject, tmp_path: Path, name: str
) -> None:
    """The environment is copied there. The second path is longer than 200 characters."""
    moved = project.copy_to(tmp_path / name)
    done = moved.run('train "a b"')
    assert (done.returncode, done.stderr) == (3, "")
    assert json.loads(done.stdout)["args"] == ["train", "a b"]
    assert Path(json.loads(done.stdout)["cwd"]) == SYSTEM  # relative paths refer to the caller's folder


LOCAL = Path("C:\\用 & (户)")


class DeepProject(BatchProject):
    """A project whose path is too long for packages, without TRAINDECK_ENVIRONMENT."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "长" * 30 + "\\" + "d" * 90)

    def environment(self, **variables: str) -> dict[str, str]:
        environment = super().environment(**{"LOCALAPPDATA": str(LOCAL), **variables})
        del environment["TRAINDECK_ENVIRONMENT"]
        return environment


@pytest.fixture
def local() -> Iterator[Path]:
    """An empty LOCALAPPDATA folder with a short path."""
    shutil.rmtree(LOCAL, ignore_errors=True)
    LOCAL.mkdir()
    yield LOCAL
    shutil.rmtree(LOCAL)


@pytest.mark.in_chinese
@pytest.mark.skipif(windows_long_paths(), reason="this Windows allows long paths")
def test_packages_are_installed_elsewhere_if_the_path_is_too_long(tmp_path: Path, local: Path) -> None:
    project = DeepProject(tmp_path)
    assert len(str(project.root)) > 200
    done = project.run('train "a b"')
    assert done.returncode == 3, done.stderr
    home = next((local / "Traindeck").iterdir())
    assert f"Packages: {home}" in done.stderr
    assert f"Runs: {Path.home() / 'Traindeck'} " in done.stderr
    assert project.folders() == set()
    home_txt_only = {**project.without_python(), "LOCALAPPDATA": str(local)}
    again = project.run("train", env=home_txt_only)
    assert (again.returncode, again.stderr) == (3, "")
    project.require_version("2.0")
    assert project.run("train").returncode == 3
    assert (home / ".venv" / "Lib" / "site-packages" / "small-2.0.dist-info" / "INSTALLER").exists()
    removed = project.run("uninstall --yes")
    assert removed.returncode == 0, removed.stderr
    assert not (home / ".venv" / "Lib").exists()


# --- shortcut and removal ------------------------------------------------------------------------------------


def test_a_shortcut_starts_the_batch_file_and_has_the_icon(tmp_path: Path) -> None:
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
def test_uninstall_removes_the_installation_and_keeps_runs(project: BatchProject, tmp_path: Path) -> None:
    copy = project.copy_to(tmp_path / "to remove")
    for folder in ("cache", "runs", ".venv.new"):
        (copy.root / folder).mkdir()
    declined = copy.run("uninstall", stdin="n\n")
    assert declined.returncode == 3
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
