"""Transactional updates of a working environment. A failed update never prevents a start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_project import KILL_BEFORE_EVENT, ShellProject, write_torch, write_wheel

from launcher.environment import Environment
from launcher.pythons import python_candidates, try_python

pytestmark = pytest.mark.skipif(os.name == "nt", reason="starts through train_gpu.sh")


class UpdatedProject(ShellProject):
    """A project with an environment that is updated."""

    def require_version(self, version: str, *packages: str) -> None:
        self.require("torch>=2.11", "small", *packages)
        (self.root / "constraints.txt").write_text(f"torch==2.13.0\nsmall=={version}\n", encoding="utf-8")

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def small(self) -> str:
        """Output of the program of `small`: its version and environment."""
        return subprocess.check_output([str(self.venv / "bin" / "small")], encoding="utf-8").strip()

    def small_is(self, version: str) -> bool:
        return self.small() == f"small {version} in {self.venv}"

    def folders(self) -> set[str]:
        """Environments except the previous one, to which one can go back."""
        return {path.name for path in self.root.glob(".venv*")} - {".venv-setup", ".venv.old"}

    def kill_before(self, event: str, text: str) -> int:
        """Start and kill the launcher right before this audit event."""
        script = str(self.root / "train_gpu.py")
        command = [str(self.venv / "bin" / "python"), "-I", "-c", KILL_BEFORE_EVENT, event, text, script, "train"]
        null = subprocess.DEVNULL
        return subprocess.run(command, env=self.environment(), stdin=null, capture_output=True, check=False).returncode

    def start_program(self) -> subprocess.Popen[str]:
        """Start a program of .venv that runs until its input ends."""
        command = [str(self.venv / "bin" / "python"), "-c", "print('started', flush=True); input()"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, encoding="utf-8")
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        return process

    @property
    def log(self) -> str:
        return (self.root / "logs" / "setup.log").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def updated(tmp_path_factory: pytest.TempPathFactory) -> UpdatedProject:
    project = UpdatedProject(tmp_path_factory.mktemp("updates"))
    assert project.run("setup").returncode == 0
    project.require_version("2.0")
    assert project.run("setup").returncode == 0
    return project


@pytest.fixture
def project(updated: UpdatedProject) -> UpdatedProject:
    """A complete environment with small 1.0; `setup` repairs what a test has left."""
    updated.require_version("1.0")
    done = updated.run("setup")
    assert done.returncode == 0, done.stderr
    assert updated.small_is("1.0")
    assert updated.folders() == {".venv"}
    return updated


def test_an_update_links_unchanged_files_and_its_programs_work(project: UpdatedProject) -> None:
    before = project.torch_file().stat()
    project.require_version("2.0")
    done = project.run("train")
    assert done.returncode == 3, done.stderr
    assert ".venv.new: the requirements changed" in done.stderr
    assert project.small_is("2.0")
    assert project.folders() == {".venv"}
    assert project.torch_file().stat().st_ino == before.st_ino
    not_rewritten = [file.name for file in (project.venv / "bin").iterdir() if b".venv.new" in file.read_bytes()]
    assert not_rewritten == []
    pip = subprocess.check_output([str(project.venv / "bin" / "pip"), "--version"], encoding="utf-8")
    assert str(project.venv) in pip
    assert project.run("train").stderr == ""


def test_an_update_does_not_modify_files_of_the_previous_environment(project: UpdatedProject) -> None:
    """Both share files by hard links, so a write would change the previous environment."""
    before = {path: path.read_bytes() for path in project.venv.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    project.require_version("2.0")
    assert project.kill_before("os.rename", ".venv.old") == 99
    assert {path: path.read_bytes() for path in before} == before
    assert "small 2.0" in (next(project.root.glob(".venv.new/lib/*/site-packages/small.py"))).read_text(
        encoding="utf-8"
    )


def test_after_a_failed_update_the_previous_environment_starts_and_the_update_is_not_repeated(
    project: UpdatedProject,
) -> None:
    project.require_version("1.0", "missing")
    failed = project.run("train")
    assert failed.returncode == 3
    assert "The update failed, so Traindeck starts without it. The packages could not be installed" in failed.stderr
    assert project.folders() == {".venv"}
    before = project.log
    again = project.run("train")
    assert again.returncode == 3
    assert "Traindeck starts without the latest update. The packages could not" in again.stderr
    assert "./train_gpu.sh setup" in again.stderr
    assert project.log == before

    setup = project.run("setup")
    assert setup.returncode == 1
    assert "ERROR: The update failed. The existing environment still works." in setup.stderr
    assert project.small_is("1.0")

    assert "The update failed" in project.run("train", PIP_TIMEOUT="7").stderr, "pip has other settings"
    write_wheel(project.wheels, "missing", "1.0", {"missing.py": ""})
    assert project.run("setup").returncode == 0
    assert project.run("train").stderr == ""


def test_an_update_without_a_loadable_toolkit_fails(project: UpdatedProject) -> None:
    window = {"PySide6/__init__.py": "", "PySide6/QtWidgets.py": "", "pyqtgraph.py": ""}
    write_wheel(project.wheels, "toolkit", "1.0", window)
    write_wheel(project.wheels, "toolkit", "2.0", {**window, "PySide6/QtWidgets.py": "raise ImportError('no GL')"})
    project.require_version("1.0", "toolkit==1.0")
    assert project.run("setup").returncode == 0
    project.require_version("1.0", "toolkit==2.0")
    done = project.run("train")
    assert done.returncode == 3
    assert (
        "The update failed, so Traindeck starts without it. The packages of the window cannot be loaded" in done.stderr
    )
    assert list(project.root.glob(".venv/lib/*/site-packages/toolkit-1.0.dist-info"))
    subprocess.run([str(project.venv / "bin/python"), "-m", "pip", "uninstall", "-q", "-y", "toolkit"], check=True)


def test_the_test_command_fails_without_its_tools(project: UpdatedProject) -> None:
    text = (project.root / "pyproject.toml").read_text(encoding="utf-8")
    (project.root / "pyproject.toml").write_text(text.replace("dev = []", "dev = ['nowhere']"), encoding="utf-8")
    for _ in range(2):
        done = project.run("test")
        assert done.returncode == 1
        assert "ERROR: The update failed" in done.stderr


STEPS = {
    "while files are linked": ("os.link", "small.py"),
    "before the copy is complete": ("os.rename", ".venv.new/traindeck.json"),
    "before pip": ("subprocess.Popen", "'install'"),
    "before verification": ("subprocess.Popen", "import PySide6"),
    "before the switch": ("os.rename", ".venv.old'"),
    "within the switch": ("os.rename", ".venv.new', "),
    "before the previous one is deleted": ("shutil.rmtree", ".venv.old"),
}


@pytest.mark.parametrize("step", STEPS)
def test_an_update_killed_at_any_step_is_completed_at_the_next_start(project: UpdatedProject, step: str) -> None:
    project.require_version("2.0")
    assert project.kill_before(*STEPS[step]) == 99
    assert project.folders() == ({".venv.new"} if step == "within the switch" else {".venv", ".venv.new"})
    done = project.run("train")
    assert done.returncode == 3, done.stderr
    assert project.small_is("2.0")
    assert project.folders() == {".venv"}
    assert project.run("train").stderr == ""


def test_one_can_go_back_to_the_packages_before_an_update(project: UpdatedProject) -> None:
    project.require_version("2.0")
    assert project.run("train").returncode == 3
    assert project.small_is("2.0")
    # The window may have another language than the terminal of the next start.
    assert project.run("setup", "--back", TRAINDECK_LANG="zh").returncode == 0
    assert project.small_is("1.0")
    again = project.run("train")
    assert again.returncode == 3
    assert "You went back to the packages before the last update." in again.stderr
    assert project.small_is("1.0")
    assert project.run("setup").returncode == 0
    assert project.small_is("2.0")


def test_one_cannot_go_back_while_traindeck_runs_or_twice_as_far(project: UpdatedProject) -> None:
    with project.start_program() as program:
        refused = project.run("setup", "--back")
        program.communicate("\n")
    assert refused.returncode == 1
    assert f"(process {program.pid})" in refused.stderr
    (project.root / ".venv.old" / "traindeck.json").unlink()
    assert project.run("setup", "--back").returncode == 2


def test_a_killed_update_without_a_package_source_starts_the_previous_environment(project: UpdatedProject) -> None:
    project.require_version("2.0")
    assert project.kill_before("subprocess.Popen", "'install'") == 99
    done = project.run("train", PIP_FIND_LINKS="/nowhere")
    assert done.returncode == 3
    assert "The update failed" in done.stderr
    assert project.small_is("1.0")
    assert project.folders() == {".venv"}


def test_an_update_of_torch_waits_for_a_run_that_only_the_old_one_resumes_exactly(project: UpdatedProject) -> None:
    write_torch(project.wheels, "2.15.0+cpu")
    run = project.root / "runs" / "mine"
    (run / "checkpoints" / "step-00000020").mkdir(parents=True)
    state = run / "checkpoints" / "step-00000020" / "state.json"
    state.write_text(json.dumps({"run_fingerprint": {"torch": "2.13.0"}}), encoding="utf-8")
    step, done = '{"type":"step","step":20}\n', '{"type":"done","reason":"%s"}\n'
    (run / "events.jsonl").write_text(step + done % "stopped", encoding="utf-8")
    try:
        project.require_version("2.0")
        assert project.run("train").stderr, "another package does not matter"
        assert project.small_is("2.0")
        (project.root / "constraints.txt").write_text("torch==2.15.0\nsmall==2.0\n", encoding="utf-8")
        waiting = project.run("train", "--resume", "mine")
        assert waiting.returncode == 3
        assert "The update waits for run mine" in waiting.stderr
        assert "'2.13.0+cpu'" in project.torch_file().read_text(encoding="utf-8")
        with project.start_program() as program:
            assert "takes effect when you close and restart" in project.run("setup").stderr
            program.communicate("\n")
        requested = project.run("train")
        assert requested.stderr == ""
        assert "'2.15.0+cpu'" in project.torch_file().read_text(encoding="utf-8")
        project.require_version("2.0")
        assert "waits" not in project.run("train").stderr, "this torch cannot resume it exactly anyway"
        (run / "events.jsonl").write_text(step + done % "finished", encoding="utf-8")
        (project.root / "constraints.txt").write_text("torch==2.15.0\nsmall==2.0\n", encoding="utf-8")
        assert "waits" not in project.run("train").stderr
        assert "'2.15.0+cpu'" in project.torch_file().read_text(encoding="utf-8")
    finally:
        shutil.rmtree(project.root / "runs")


def test_an_update_is_postponed_while_the_environment_is_in_use(project: UpdatedProject) -> None:
    running = project.start_program()
    project.require_version("2.0")
    for _ in range(2):
        done = project.run("train")
        assert done.returncode == 3
        assert "takes effect when you close and restart Traindeck" in done.stderr
        assert project.small_is("1.0")
    assert project.run("setup").returncode == 0
    running.communicate("\n")
    done = project.run("train", PIP_FIND_LINKS="/nowhere")  # all packages are already in .venv.new
    assert done.returncode == 3, done.stderr
    assert project.small_is("2.0")
    assert project.folders() == {".venv"}


def test_an_update_is_offered_by_the_window_and_in_use_after_its_restart(project: UpdatedProject) -> None:
    (project.root / "app.py").write_text("import os; print(os.environ['TRAINDECK_UPDATE'])", encoding="utf-8")
    with project.start_program() as window:
        project.require_version("2.0")
        with (project.root / "pyproject.toml").open("a", encoding="utf-8") as file:
            file.write("[tool.traindeck]\nwindow = ['pip']\n")
        assert project.run().stdout.strip() == "small 1.0 → 2.0"
        assert "takes effect when you close and restart Traindeck" in project.run("setup").stderr
        window.communicate("\n")
    assert project.run().stdout.strip() == ""
    assert project.small_is("2.0")


def test_a_pending_update_that_is_no_longer_required_is_deleted(project: UpdatedProject) -> None:
    running = project.start_program()
    project.require_version("2.0")
    project.run("train")
    assert project.folders() == {".venv", ".venv.new"}
    project.require_version("1.0")
    assert project.run("train").returncode == 3
    assert project.folders() == {".venv"}
    running.communicate("\n")
    assert project.small_is("1.0")


def test_another_python_replaces_the_environment(project: UpdatedProject) -> None:
    own = Path(try_python(sys.executable).executable).resolve()
    found = (try_python(path) for path in python_candidates())
    usable = (python.executable for python in found if not python.reason)
    other = next((path for path in usable if Path(path).resolve() != own), None)
    if other is None:
        pytest.skip("needs a second Python")
    done = project.run("setup", "--python", other)
    assert done.returncode == 0, done.stderr
    assert "another Python was chosen" in done.stderr
    assert Path(try_python(str(project.venv / "bin" / "python")).executable).resolve() == Path(other).resolve()
    assert project.small_is("1.0")
    assert b".venv.new" not in (project.venv / "pyvenv.cfg").read_bytes()
    assert project.run("train").stderr == ""
    assert project.run("setup", "--python", "/nowhere/python").returncode == 1
    done = project.run("train")
    assert done.returncode == 3
    assert "The chosen Python cannot be used" in done.stderr
    assert project.run("setup", "--python", str(own)).returncode == 0
    assert project.run("setup", "--python", "auto").returncode == 0


def test_another_python_can_be_chosen_for_an_unfinished_environment_and_taken_back(project: UpdatedProject) -> None:
    found = [try_python(path) for path in python_candidates()][1:]
    usable = [Path(python.executable).resolve() for python in found if not python.reason]
    other = next((path for path in reversed(usable) if path != usable[0]), None)
    if other is None:
        pytest.skip("needs a second Python")
    for choice, expected in ((str(other), other), ("auto", usable[0])):
        Environment(project.venv).update_state(complete=False)
        done = project.run("setup", "--python", choice)
        assert done.returncode == 0, done.stderr
        assert Path(try_python(str(project.venv / "bin" / "python")).executable).resolve() == expected
        assert project.small_is("1.0")


OLD_PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.[6789].*/bin/python"))


@pytest.mark.skipif(not OLD_PYTHONS, reason="needs a Python before 3.10, for example of pyenv")
@pytest.mark.parametrize("python", OLD_PYTHONS, ids=lambda path: path.parents[1].name)
def test_an_unsupported_python_completes_an_interrupted_switch_and_searches_for_another_python(
    python: Path, tmp_path: Path
) -> None:
    project = UpdatedProject(tmp_path)
    for folder in (".venv", ".venv.new", ".venv.old"):
        (project.root / folder).mkdir()
    command = [str(python), "-I", "-X", "utf8", str(project.root / "train_gpu.py"), "setup", "--python", "/nowhere"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert "ERROR: The chosen Python cannot be used" in done.stderr
    assert project.folders() == {".venv", ".venv.new"}


def test_a_process_with_a_loaded_library_uses_the_environment(tmp_path: Path) -> None:
    from launcher.running import processes_using

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


# --- package folder --------------------------------------------------------------------------------------


def test_a_chosen_package_folder_is_used_updated_and_removed(tmp_path: Path) -> None:
    project, chosen = UpdatedProject(tmp_path), tmp_path / "别处 & here"
    (chosen / ".venv").mkdir(parents=True)  # of another program
    setup = project.run("setup", "--environment", str(chosen))
    assert setup.returncode == 0, setup.stderr
    home = next(chosen.glob("env-*"))
    assert f"Setting up Traindeck in {home / '.venv'}" in setup.stderr
    again = project.run("train")
    assert (again.returncode, again.stderr) == (3, "")
    project.require_version("2.0")
    updated = project.run("train")
    assert updated.returncode == 3, updated.stderr
    output = subprocess.check_output([str(home / ".venv" / "bin" / "small")], encoding="utf-8").strip()
    assert output == f"small 2.0 in {home / '.venv'}"
    assert {path.name for path in home.iterdir()} == {".venv", ".venv.old"}
    assert project.folders() == set()
    assert project.run("uninstall", "--yes").returncode == 0
    assert [path.name for path in chosen.iterdir()] == [".venv"]


def test_uninstall_also_removes_package_folders_of_earlier_choices_but_not_during_a_setup(tmp_path: Path) -> None:
    import fcntl  # not on Windows

    project, chosen = UpdatedProject(tmp_path), [tmp_path / "first", tmp_path / "second"]
    for folder in chosen:
        assert project.run("setup", "--environment", str(folder)).returncode == 0
    with (project.root / ".venv-setup" / "lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused = project.run("uninstall", "--yes")
    assert refused.returncode == 1
    assert "Setup is running" in refused.stderr
    assert all(list(folder.glob("env-*/.venv")) for folder in chosen)
    assert project.run("uninstall", "--yes").returncode == 0
    assert not [path for folder in chosen for path in folder.iterdir()]


def test_a_package_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    failed = UpdatedProject(tmp_path).run("setup", "--environment", str(tmp_path / "a file" / "in it"))
    assert failed.returncode == 1
    assert str(tmp_path / "a file") in failed.stderr
    assert "must be able to write there" in failed.stderr
