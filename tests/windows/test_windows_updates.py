"""Updates by train_gpu.bat: python.exe runs from the folder that is replaced."""

from __future__ import annotations

import subprocess

import pytest
from batch_project import BatchProject

pytestmark = pytest.mark.in_chinese


@pytest.fixture
def project(project: BatchProject) -> BatchProject:
    """A complete environment; `setup` repairs what a failed test has left."""
    if not project.installed_version():
        project.require_version("1.0")
        done = project.run("setup")
        assert done.returncode == 0, done.stderr
    return project


@pytest.fixture
def before(project: BatchProject) -> str:
    """The installed version of `small`."""
    return project.installed_version()


@pytest.fixture
def after(project: BatchProject, before: str) -> str:
    """The version of `small` after an update."""
    return "2.0" if before == "1.0" else "1.0"


def test_an_update_replaces_the_environment_and_its_programs_work(project: BatchProject, after: str) -> None:
    project.require_version(after)
    done = project.run("train")
    assert done.returncode == 3, done.stderr
    assert ".venv.new: the requirements changed" in done.stderr
    assert project.small_is(after)
    assert str(project.venv) in project.program("pip", "--version")
    assert project.folders() == {".venv"}
    not_rewritten = [file.name for file in (project.venv / "Scripts").iterdir() if b".venv.new" in file.read_bytes()]
    assert not_rewritten == []
    assert project.run("train").stderr == ""


def test_after_a_failed_update_the_previous_environment_starts_and_the_update_is_not_repeated(
    project: BatchProject, before: str
) -> None:
    project.require_version(before, "missing")
    failed = project.run("train")
    assert failed.returncode == 3
    assert "The update failed, so Traindeck starts without it" in failed.stderr
    logged = project.log
    again = project.run("train")
    assert again.returncode == 3
    assert "train_gpu.bat setup" in again.stderr
    assert project.log == logged
    assert project.run("setup").returncode == 1
    assert project.small_is(before)
    assert project.folders() == {".venv"}
    project.require_version(before)


def test_an_update_is_postponed_while_the_environment_is_in_use(project: BatchProject, before: str, after: str) -> None:
    command = [str(project.venv / "Scripts" / "python.exe"), "-c", "print('started', flush=True); input()"]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline().strip() == b"started"
    project.require_version(after)
    done = project.run("train")
    assert done.returncode == 3
    assert "takes effect when you close and restart Traindeck" in done.stderr
    assert project.small_is(before)
    running.communicate(b"\n")
    wheel = project.wheels / f"small-{after}-py3-none-any.whl"
    wheel.rename(project.wheels / "away")
    done = project.run("train")  # all packages are already in .venv.new
    (project.wheels / "away").rename(wheel)
    assert done.returncode == 3, done.stderr
    assert project.small_is(after)
    assert project.folders() == {".venv"}


def test_concurrent_starts_update_once(project: BatchProject, after: str) -> None:
    """The start that waits for the lock runs from .venv too, but does not postpone the update."""
    project.require_version(after)
    children = [project.start("train"), project.start("train")]
    assert [child.wait(150) for child in children] == [3, 3]
    assert project.small_is(after)
    assert project.folders() == {".venv"}


STEPS = {
    "before the packages": ("subprocess.Popen", " pip install "),
    "while python.exe is moved": ("os.rename", r".venv\\Scripts\\python.copy"),
    "within the switch": ("os.rename", ".venv.new', "),
}


@pytest.mark.parametrize("step", STEPS)
def test_an_update_killed_at_any_step_is_completed_at_the_next_start(
    project: BatchProject, after: str, step: str
) -> None:
    project.require_version(after)
    assert project.kill_before(*STEPS[step]) == 99
    assert project.folders() == ({".venv.new"} if step == "within the switch" else {".venv", ".venv.new"})
    done = project.run("train")
    assert done.returncode == 3, done.stderr
    assert project.small_is(after)
    assert project.folders() == {".venv"}
