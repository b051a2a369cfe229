"""Updates through train_gpu.bat: the python.exe that makes them lies in the very folder that they exchange."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from batch import Batch
from stand_ins import CUT_OFF

pytestmark = pytest.mark.in_chinese


class Updated(Batch):
    """What lies there before and after."""

    def want(self, version: str, *more: str) -> None:
        self.require("torch>=2.11", "small", *more)
        (self.root / "constraints.txt").write_text(f"torch==2.13.0\nsmall=={version}\n", encoding="utf-8")

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def program(self, name: str, *arguments: str) -> str:
        """What a program of .venv says, which pip made as an .exe."""
        command = [str(self.venv / "Scripts" / f"{name}.exe"), *arguments]
        environment = {**self.environment(), "PYTHONUTF8": "1"}
        return subprocess.check_output(command, env=environment, stderr=subprocess.DEVNULL, encoding="utf-8").strip()

    def says(self, version: str) -> bool:
        return self.program("small") == f"small {version} in {self.venv}"

    def folders(self) -> set[str]:
        return {path.name for path in self.root.glob(".venv*")} - {".venv-setup"}

    def cut_off(self, event: str, words: str) -> int:
        """Start, and be killed right before this."""
        python, script = str(self.venv / "Scripts" / "python.exe"), str(self.root / "train_gpu.py")
        command = [python, "-I", "-X", "utf8", "-c", CUT_OFF, event, words, script, "train"]
        null = subprocess.DEVNULL
        return subprocess.run(command, env=self.environment(), stdin=null, capture_output=True, check=False).returncode


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Updated:
    project = Updated(tmp_path_factory.mktemp("updates"))
    done = project.run("setup")
    assert done.returncode == 0, done.stderr
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


def test_an_update_is_switched_and_programs_find_their_place(project: Updated) -> None:
    project.want("2.0")
    done = project.run("train")
    assert done.returncode == 3, done.stderr
    assert ".venv.new: the requirements, the choices, Python or the driver changed" in done.stderr
    assert project.says("2.0")
    assert str(project.venv) in project.program("pip", "--version")
    assert project.folders() == {".venv"}
    named = [file.name for file in (project.venv / "Scripts").iterdir() if b".venv.new" in file.read_bytes()]
    assert named == []
    assert project.run("train").stderr == ""


def test_after_a_failed_update_the_old_one_starts_and_the_same_update_is_not_tried_again(project: Updated) -> None:
    project.want("1.0", "missing")
    failed = project.run("train")
    assert failed.returncode == 3
    assert "The update failed, so Traindeck starts as it was" in failed.stderr
    before = project.log
    again = project.run("train")
    assert again.returncode == 3
    assert "train_gpu.bat setup" in again.stderr
    assert project.log == before
    assert project.run("setup").returncode == 1
    assert project.says("1.0")
    assert project.folders() == {".venv"}


def test_files_are_not_exchanged_below_a_program_that_runs(project: Updated) -> None:
    command = [str(project.venv / "Scripts" / "python.exe"), "-c", "print('here', flush=True); input()"]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline().strip() == b"here"
    project.want("2.0")
    done = project.run("train")
    assert done.returncode == 3
    assert "takes effect when Traindeck is closed and started again" in done.stderr
    assert project.says("1.0")
    running.communicate(b"\n")
    (project.wheels / "small-2.0-py3-none-any.whl").rename(project.wheels / "away")
    done = project.run("train")  # everything is there already
    (project.wheels / "away").rename(project.wheels / "small-2.0-py3-none-any.whl")
    assert done.returncode == 3, done.stderr
    assert project.says("2.0")
    assert project.folders() == {".venv"}


def test_two_starts_at_once_update_once(project: Updated) -> None:
    """The one that waits runs from .venv too, and is no reason to wait for it."""
    project.want("2.0")
    children = [project.begin("train"), project.begin("train")]
    assert [child.wait(150) for child in children] == [3, 3]
    assert project.says("2.0")
    assert project.folders() == {".venv"}


STEPS = {
    "before pip": ("subprocess.Popen", " install -c "),
    "while python.exe steps aside": ("os.rename", "python.copy"),
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
