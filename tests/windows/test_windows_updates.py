"""Updates through train_gpu.bat: the python.exe that makes them lies in the very folder that they exchange."""

from __future__ import annotations

import subprocess

import pytest
from batch import Batch

pytestmark = pytest.mark.in_chinese


@pytest.fixture
def project(project: Batch) -> Batch:
    """Set up and whole. A start puts right whatever a test has left that failed."""
    if not project.has():
        project.want("1.0")
        done = project.run("setup")
        assert done.returncode == 0, done.stderr
    return project


@pytest.fixture
def before(project: Batch) -> str:
    """The version that `small` has."""
    return project.has()


@pytest.fixture
def after(project: Batch, before: str) -> str:
    """The version that an update would give it."""
    return "2.0" if before == "1.0" else "1.0"


def test_an_update_is_switched_and_programs_find_their_place(project: Batch, after: str) -> None:
    project.want(after)
    done = project.run("train")
    assert done.returncode == 3, done.stderr
    assert ".venv.new: the requirements, options, Python or driver changed" in done.stderr
    assert project.says(after)
    assert str(project.venv) in project.program("pip", "--version")
    assert project.folders() == {".venv"}
    named = [file.name for file in (project.venv / "Scripts").iterdir() if b".venv.new" in file.read_bytes()]
    assert named == []
    assert project.run("train").stderr == ""


def test_after_a_failed_update_the_old_one_starts_and_the_same_update_is_not_tried_again(
    project: Batch, before: str
) -> None:
    project.want(before, "missing")
    failed = project.run("train")
    assert failed.returncode == 3
    assert "The update failed, so Traindeck starts without it" in failed.stderr
    logged = project.log
    again = project.run("train")
    assert again.returncode == 3
    assert "train_gpu.bat setup" in again.stderr
    assert project.log == logged
    assert project.run("setup").returncode == 1
    assert project.says(before)
    assert project.folders() == {".venv"}
    project.want(before)


def test_files_are_not_exchanged_below_a_program_that_runs(project: Batch, before: str, after: str) -> None:
    command = [str(project.venv / "Scripts" / "python.exe"), "-c", "print('here', flush=True); input()"]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline().strip() == b"here"
    project.want(after)
    done = project.run("train")
    assert done.returncode == 3
    assert "takes effect when Traindeck is closed and started again" in done.stderr
    assert project.says(before)
    running.communicate(b"\n")
    wheel = project.wheels / f"small-{after}-py3-none-any.whl"
    wheel.rename(project.wheels / "away")
    done = project.run("train")  # everything is there already
    (project.wheels / "away").rename(wheel)
    assert done.returncode == 3, done.stderr
    assert project.says(after)
    assert project.folders() == {".venv"}


def test_two_starts_at_once_update_once(project: Batch, after: str) -> None:
    """The one that waits runs from .venv too, and is no reason to wait for it."""
    project.want(after)
    children = [project.begin("train"), project.begin("train")]
    assert [child.wait(150) for child in children] == [3, 3]
    assert project.says(after)
    assert project.folders() == {".venv"}


STEPS = {
    "before pip": ("subprocess.Popen", " install -c "),
    "while python.exe steps aside": ("os.rename", "python.copy"),
    "within the switch": ("os.rename", ".venv.new', "),
    "before the old one is deleted": ("shutil.rmtree", ".venv.old"),
}


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_the_next_start_goes_on(project: Batch, after: str, step: str) -> None:
    project.want(after)
    assert project.cut_off(*STEPS[step]) == 99
    assert project.folders() == {
        "within the switch": {".venv.old", ".venv.new"},
        "before the old one is deleted": {".venv", ".venv.old"},
    }.get(step, {".venv", ".venv.new"})
    done = project.run("train")
    assert done.returncode == 3, done.stderr
    assert project.says(after)
    assert project.folders() == {".venv"}
