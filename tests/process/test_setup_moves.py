"""A folder that moves: to another place, to a computer whose Python is elsewhere, to one without a network."""

import json
import os
import shutil
import subprocess
import time
import zipfile
from pathlib import Path

import pytest
from launcher_project import ShellProject, write_wheel

pytestmark = pytest.mark.skipif(os.name == "nt", reason="starts through train_gpu.sh")
has_namespaces = os.geteuid() == 0 and shutil.which("unshare") if os.name != "nt" else False
NO_SOURCE = {"PIP_FIND_LINKS": "/nowhere"}


@pytest.fixture
def project(tmp_path: Path) -> ShellProject:
    project = ShellProject(tmp_path)
    assert project.run("setup").returncode == 0
    return project


def move(project: ShellProject, name: str) -> None:
    project.root = project.root.rename(project.root.with_name(name))


def forget_python(project: ShellProject) -> None:
    """As on a computer that has no Python in the folder of the old one's."""
    config, link = project.root / ".venv" / "pyvenv.cfg", project.root / ".venv" / "bin" / "python"
    lines = config.read_text(encoding="utf-8").splitlines()
    config.write_text("\n".join(["home = /gone/bin", *lines[1:]]) + "\n", encoding="utf-8")
    link.unlink()
    link.symlink_to("/gone/bin/python3")


def test_a_moved_folder_starts_without_a_setup(project: ShellProject) -> None:
    move(project, "我的 模型 & co")
    done = project.run("train", **NO_SOURCE)
    assert (done.returncode, done.stderr) == (3, "")
    program = project.root / ".venv" / "bin" / "small"
    output = subprocess.check_output([str(program)], encoding="utf-8")
    assert output == f"small 1.0 in {project.root / '.venv'}\n"


def test_on_a_computer_with_another_python_it_is_repaired_in_seconds_without_a_network(project: ShellProject) -> None:
    move(project, "moved")
    forget_python(project)
    started = time.monotonic()
    done = project.run("train", **NO_SOURCE)
    assert time.monotonic() - started < 10
    assert done.returncode == 3, done.stderr
    assert "was moved, and uses" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert project.run("train", **NO_SOURCE).stderr == ""


def test_an_update_after_a_move_works(project: ShellProject) -> None:
    move(project, "moved")
    (project.root / "constraints.txt").write_text("torch==2.13.0\nsmall==2.0\n", encoding="utf-8")
    assert project.run("train").returncode == 3
    program = project.root / ".venv" / "bin" / "small"
    output = subprocess.check_output([str(program)], encoding="utf-8")
    assert output == f"small 2.0 in {project.root / '.venv'}\n"


@pytest.mark.skipif(not has_namespaces, reason="needs root and network namespaces")
def test_a_pack_is_set_up_without_a_network(project: ShellProject, tmp_path: Path) -> None:
    write_wheel(project.wheels, "pip", "26.0", {"pip/__init__.py": ""})
    uv = Path(project.environment()["TRAINDECK_UV"])
    write_wheel(project.wheels, "uv", "0.13.9", {})
    with zipfile.ZipFile(project.wheels / "uv-0.13.9-py3-none-any.whl", "a") as wheel:
        wheel.write(uv, "uv-0.13.9.data/scripts/uv")
    for private in (".env", "diary/2026.txt", "trainer_core/.env"):
        (project.root / private).parent.mkdir(exist_ok=True)
        (project.root / private).touch()
    os.utime(project.root / "trainer_core" / "__init__.py", (0, 0))  # a zip begins with 1980
    (project.root / "trainer_core" / os.fsdecode(b"caf\xe9.py")).touch()
    (project.root / "trainer_core" / "gone.py").symlink_to("nowhere")
    target = tmp_path / "traindeck 包.zip"
    done = project.run("pack", str(target), "--torch", "cpu")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(target) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "usb")
    top = {name.split("/")[1] for name in names}
    assert top == {
        *("trainer_core", "launcher", "constraints.txt", "pyproject.toml", "train_gpu.py", "train_gpu.sh"),
        *("train_gpu.bat", "wheels", ".venv-setup"),
    }
    assert not [name for name in names if name.endswith((".env", "gone.py"))]
    project.root = tmp_path / "usb" / "traindeck 包"
    (project.root / "train_gpu.sh").chmod(0o755)
    environment = project.environment(TRAINDECK_UV="", PIP_NO_INDEX="0", PIP_FIND_LINKS="")
    command = ["unshare", "--net", str(project.root / "train_gpu.sh"), "train"]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=120, input="")
    assert done.returncode == 3, done.stderr
    state = json.loads((project.root / ".venv" / "traindeck.json").read_bytes())
    assert (state["complete"], state["torch"]) == (True, "2.13.0+cpu")


def test_a_pack_is_not_written_over_a_folder(project: ShellProject, tmp_path: Path) -> None:
    done = project.run("pack", str(tmp_path), **NO_SOURCE)
    assert done.returncode == 2
    assert f"{tmp_path} is a folder" in done.stderr
    missing = project.run("pack", str(tmp_path / "missing" / "x.zip"), **NO_SOURCE)
    assert "missing" in missing.stderr
    assert "No source" not in missing.stderr


def test_without_uv_there_is_no_pack(project: ShellProject, tmp_path: Path) -> None:
    done = project.run("pack", str(tmp_path / "x.zip"), TRAINDECK_UV="none")
    assert done.returncode == 1
    assert "pack needs uv" in done.stderr
    assert not (tmp_path / "x.zip").exists()
