"""Updates of a set-up that works: made beside it, switched when they are whole, and never in the way of a start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import CUT_OFF, Shell, write_wheel

from launcher.environment import Environment
from launcher.pythons import python_candidates, try_python

pytestmark = pytest.mark.skipif(os.name == "nt", reason="starts through train_gpu.sh")


class Updated(Shell):
    """What lies there before and after."""

    def want(self, version: str, *more: str) -> None:
        self.require("torch>=2.11", "small", *more)
        (self.root / "constraints.txt").write_text(f"torch==2.13.0\nsmall=={version}\n", encoding="utf-8")

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def small(self) -> str:
        """What the program of `small` says: its version, and the environment that it lives in."""
        return subprocess.check_output([str(self.venv / "bin" / "small")], encoding="utf-8").strip()

    def says(self, version: str) -> bool:
        return self.small() == f"small {version} in {self.venv}"

    def folders(self) -> set[str]:
        return {path.name for path in self.root.glob(".venv*")} - {".venv-setup"}

    def cut_off(self, event: str, words: str) -> int:
        """Start, and be killed right before this."""
        script = str(self.root / "train_gpu.py")
        command = [str(self.venv / "bin" / "python"), "-I", "-c", CUT_OFF, event, words, script, "train"]
        null = subprocess.DEVNULL
        return subprocess.run(command, env=self.environment(), stdin=null, capture_output=True, check=False).returncode

    def hold(self, **options: str) -> subprocess.Popen[str]:
        """A program that runs from .venv until its input ends."""
        command = [str(self.venv / "bin" / "python"), "-c", "print('here', flush=True); input()"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, encoding="utf-8", **options)
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        return process

    @property
    def log(self) -> str:
        return (self.root / "logs" / "setup.log").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Updated:
    project = Updated(tmp_path_factory.mktemp("updates"))
    assert project.run("setup").returncode == 0
    return project


@pytest.fixture
def project(made: Updated) -> Updated:
    """Set up, with small 1.0: whatever a test leaves is put right by a start, for that is what is tested."""
    made.want("1.0")
    done = made.run("setup")
    assert done.returncode == 0, done.stderr
    assert made.says("1.0")
    assert made.folders() == {".venv"}
    return made


def test_an_update_is_made_of_the_old_files_and_all_programs_find_their_place(project: Updated) -> None:
    before = project.torch_file().stat()
    project.want("2.0")
    done = project.run("train")
    assert done.returncode == 3, done.stderr
    assert ".venv.new: the requirements, options, Python or driver changed" in done.stderr
    assert project.says("2.0")
    assert project.folders() == {".venv"}
    assert project.torch_file().stat().st_ino == before.st_ino
    named = [file.name for file in (project.venv / "bin").iterdir() if b".venv.new" in file.read_bytes()]
    assert named == []
    pip = subprocess.check_output([str(project.venv / "bin" / "pip"), "--version"], encoding="utf-8")
    assert str(project.venv) in pip
    assert project.run("train").stderr == ""


def test_nothing_is_written_into_the_files_of_the_old_one(project: Updated) -> None:
    """They are the same files: a change in the new one would be one in the old."""
    before = {path: path.read_bytes() for path in project.venv.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    project.want("2.0")
    assert project.cut_off("os.rename", ".venv.old") == 99
    assert {path: path.read_bytes() for path in before} == before
    assert "small 2.0" in (next(project.root.glob(".venv.new/lib/*/site-packages/small.py"))).read_text(
        encoding="utf-8"
    )


def test_after_a_failed_update_the_old_one_starts_and_the_same_update_is_not_tried_again(project: Updated) -> None:
    project.want("1.0", "missing")
    failed = project.run("train")
    assert failed.returncode == 3
    assert "The update failed, so Traindeck starts without it. The packages could not be installed" in failed.stderr
    assert project.folders() == {".venv"}
    before = project.log
    again = project.run("train")
    assert again.returncode == 3
    assert "A previous update failed" in again.stderr
    assert "./train_gpu.sh setup" in again.stderr
    assert project.log == before

    asked = project.run("setup")
    assert asked.returncode == 1
    assert "ERROR: The update failed. The existing environment still works." in asked.stderr
    assert project.says("1.0")

    assert "The update failed" in project.run("train", PIP_TIMEOUT="7").stderr, "pip is told something else"
    write_wheel(project.wheels, "missing", "1.0", {"missing.py": ""})
    assert project.run("setup").returncode == 0
    assert project.run("train").stderr == ""


def test_an_update_after_which_no_window_would_open_is_a_failed_one(project: Updated) -> None:
    window = {"PySide6/__init__.py": "", "PySide6/QtWidgets.py": "", "pyqtgraph.py": ""}
    write_wheel(project.wheels, "toolkit", "1.0", window)
    write_wheel(project.wheels, "toolkit", "2.0", {**window, "PySide6/QtWidgets.py": "raise ImportError('no GL')"})
    project.want("1.0", "toolkit==1.0")
    assert project.run("setup").returncode == 0
    project.want("1.0", "toolkit==2.0")
    done = project.run("train")
    assert done.returncode == 3
    assert (
        "The update failed, so Traindeck starts without it. The packages of the window cannot be loaded" in done.stderr
    )
    assert list(project.root.glob(".venv/lib/*/site-packages/toolkit-1.0.dist-info"))
    subprocess.run([str(project.venv / "bin/python"), "-m", "pip", "uninstall", "-q", "-y", "toolkit"], check=True)


def test_the_tests_do_not_start_without_their_tools(project: Updated) -> None:
    text = (project.root / "pyproject.toml").read_text(encoding="utf-8")
    (project.root / "pyproject.toml").write_text(text.replace("dev = []", "dev = ['nowhere']"), encoding="utf-8")
    for _ in range(2):
        done = project.run("test")
        assert done.returncode == 1
        assert "ERROR: The update failed" in done.stderr


STEPS = {
    "while files are linked": ("os.link", "small.py"),
    "before the copy counts as whole": ("os.rename", ".venv.new/traindeck.json"),
    "before pip": ("subprocess.Popen", "'install'"),
    "before it is tried out": ("subprocess.Popen", "import PySide6"),
    "while scripts are rewritten": ("os.rename", "small.part"),
    "before the switch": ("os.rename", ".venv.old'"),
    "within the switch": ("os.rename", ".venv.new', "),
    "before the old one is deleted": ("shutil.rmtree", ".venv.old"),
}


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_the_next_start_goes_on(project: Updated, step: str) -> None:
    project.want("2.0")
    assert project.cut_off(*STEPS[step]) == 99
    assert project.folders() == {
        "within the switch": {".venv.old", ".venv.new"},
        "before the old one is deleted": {".venv", ".venv.old"},
    }.get(step, {".venv", ".venv.new"})
    done = project.run("train")
    assert done.returncode == 3, done.stderr
    assert project.says("2.0")
    assert project.folders() == {".venv"}
    assert project.run("train").stderr == ""


def test_killed_and_then_without_a_source_the_old_one_starts(project: Updated) -> None:
    project.want("2.0")
    assert project.cut_off("subprocess.Popen", "'install'") == 99
    done = project.run("train", PIP_FIND_LINKS="/nowhere")
    assert done.returncode == 3
    assert "The update failed" in done.stderr
    assert project.says("1.0")
    assert project.folders() == {".venv"}


def test_files_are_not_exchanged_below_a_program_that_runs(project: Updated) -> None:
    running = project.hold()
    project.want("2.0")
    for _ in range(2):
        done = project.run("train")
        assert done.returncode == 3
        assert "takes effect when you close and restart Traindeck" in done.stderr
        assert project.says("1.0")
    assert project.run("setup").returncode == 0
    running.communicate("\n")
    done = project.run("train", PIP_FIND_LINKS="/nowhere")  # everything is there already
    assert done.returncode == 3, done.stderr
    assert project.says("2.0")
    assert project.folders() == {".venv"}


def test_an_update_that_waits_and_is_no_longer_wanted_goes(project: Updated) -> None:
    running = project.hold()
    project.want("2.0")
    project.run("train")
    assert project.folders() == {".venv", ".venv.new"}
    project.want("1.0")
    assert project.run("train").returncode == 3
    assert project.folders() == {".venv"}
    running.communicate("\n")
    assert project.says("1.0")


def test_another_python_is_taken_beside_the_old_one(project: Updated) -> None:
    own = Path(try_python([sys.executable])[0]).resolve()
    bases = (try_python(command)[0] for command in python_candidates())
    other = next((base for base in bases if base and Path(base).resolve() != own), None)
    if other is None:
        pytest.skip("there is no other Python here")
    done = project.run("setup", "--python", other)
    assert done.returncode == 0, done.stderr
    assert "another Python was chosen" in done.stderr
    assert Path(try_python([str(project.venv / "bin" / "python")])[0]).resolve() == Path(other).resolve()
    assert project.says("1.0")
    assert b".venv.new" not in (project.venv / "pyvenv.cfg").read_bytes()
    assert project.run("train").stderr == ""
    assert project.run("setup", "--python", "/nowhere/python").returncode == 1
    done = project.run("train")
    assert done.returncode == 3
    assert "The chosen Python cannot be used" in done.stderr
    assert project.run("setup", "--python", str(own)).returncode == 0
    assert project.run("setup", "--python", "auto").returncode == 0


OLD_PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.[6789].*/bin/python"))


@pytest.mark.skipif(not OLD_PYTHONS, reason="needs a Python before 3.10, for example of pyenv")
@pytest.mark.parametrize("python", OLD_PYTHONS, ids=lambda path: path.parents[1].name)
def test_an_old_python_settles_what_was_cut_off_and_gets_as_far_as_finding_a_better_one(
    python: Path, tmp_path: Path
) -> None:
    project = Updated(tmp_path)
    for folder in (".venv", ".venv.new", ".venv.old"):
        (project.root / folder).mkdir()
    command = [str(python), "-I", "-X", "utf8", str(project.root / "train_gpu.py"), "setup", "--python", "/nowhere"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert "ERROR: The chosen Python cannot be used" in done.stderr
    assert project.folders() == {".venv", ".venv.new"}


def test_what_only_loaded_a_library_counts_as_a_user_too(tmp_path: Path) -> None:
    from launcher.users import processes_using

    folder = tmp_path / "用户 .venv"
    Environment(folder).programs.mkdir(parents=True)
    (folder / "library.so").write_bytes(b"x" * 4096)
    code = "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, access=1); print(); input()"
    assert processes_using(folder) == []
    command = [sys.executable, "-c", code, str(folder / "library.so")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert processes_using(folder) == [process.pid]
        process.communicate(b"\n")
    assert processes_using(folder) == []


# --- packages elsewhere --------------------------------------------------------------------------------------


def test_packages_in_a_chosen_folder_are_used_updated_and_removed_from_there(tmp_path: Path) -> None:
    project, chosen = Updated(tmp_path), tmp_path / "别处 & here"
    (chosen / ".venv").mkdir(parents=True)  # somebody else's
    made = project.run("setup", "--environment", str(chosen))
    assert made.returncode == 0, made.stderr
    home = next(chosen.glob("env-*"))
    assert f"Setting up Traindeck in {home / '.venv'}" in made.stderr
    again = project.run("train")
    assert (again.returncode, again.stderr) == (3, "")
    project.want("2.0")
    updated = project.run("train")
    assert updated.returncode == 3, updated.stderr
    said = subprocess.check_output([str(home / ".venv" / "bin" / "small")], encoding="utf-8").strip()
    assert said == f"small 2.0 in {home / '.venv'}"
    assert {path.name for path in home.iterdir()} == {".venv"}
    assert project.folders() == set()
    assert project.run("uninstall", "--yes").returncode == 0
    assert [path.name for path in chosen.iterdir()] == [".venv"]


def test_packages_that_moved_leave_word_of_where_they_were(tmp_path: Path) -> None:
    project = Updated(tmp_path)
    assert project.run("setup").returncode == 0
    moved = project.run("setup", "--environment", str(tmp_path / "elsewhere"))
    assert moved.returncode == 0, moved.stderr
    assert f"The packages in {project.venv} are no longer used" in moved.stderr


def test_a_folder_for_packages_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    refused = Updated(tmp_path).run("setup", "--environment", str(tmp_path / "a file" / "in it"))
    assert refused.returncode == 2
    assert "The package folder cannot be created:" in refused.stderr
    assert "setup --environment PATH (or auto)" in refused.stderr
