"""Setups with the real venv and pip, and fake packages that install quickly."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launcher_project import ShellProject, write_torch

pytestmark = pytest.mark.skipif(os.name == "nt", reason="starts through train_gpu.sh")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> ShellProject:
    """A project that is set up once per module; each test repairs what it breaks."""
    project = ShellProject(tmp_path_factory.mktemp("set-up"))
    first = project.run("setup")
    assert first.returncode == 0, first.stderr
    assert "first start" in first.stderr
    return project


def test_arguments_working_directory_input_and_exit_code_are_passed_through(
    project: ShellProject, tmp_path: Path
) -> None:
    link = tmp_path / "a link"
    link.symlink_to(project.root / "train_gpu.sh")
    arguments = ["train", "--run-name", "a b", "文 & $HOME 'x' *"]
    done = subprocess.run(
        [str(link), *arguments],
        input='{"type": "stop"}\n停\n',
        env=project.environment(PYTHONHOME="/nowhere"),
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout) == {
        "args": arguments,
        "cwd": str(tmp_path),
        "stdin": '{"type": "stop"}\n停\n',
        "utf8": 1,
    }
    assert done.stderr == ""


def test_a_start_without_changes_takes_less_than_a_second(project: ShellProject) -> None:
    seconds = []
    for _ in range(3):
        started = time.monotonic()
        assert project.run("train").returncode == 3
        seconds.append(time.monotonic() - started)
    assert min(seconds) < 1.0


def test_mirrors_are_measured_while_an_update_is_made(project: ShellProject) -> None:
    import fcntl  # not on Windows

    new = project.root / ".venv.new"
    new.mkdir()
    with (project.root / ".venv-setup" / "lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        child = project.start("setup", "--mirrors", "--output", "json")
        assert child.stderr is not None
        assert "MB/s" in child.stderr.readline().decode("utf-8")
        child.kill()
        child.communicate()
    new.rmdir()


def test_a_replaced_torch_is_reinstalled_at_the_next_start(project: ShellProject) -> None:
    pip = [str(project.root / ".venv/bin/python"), "-m", "pip", "install", "-q", "torch==2.15.0"]
    subprocess.run(pip, env=project.environment(), check=True, timeout=60)
    done = project.run("train")
    assert done.returncode == 3
    assert "PyTorch changed from 2.13.0+cpu to 2.15.0" in done.stderr
    assert "2.13.0+cpu" in project.torch_file().read_text(encoding="utf-8")


def test_setup_reinstalls_packages_whose_files_are_missing_or_damaged(project: ShellProject) -> None:
    small = next(project.root.glob(".venv/lib/*/site-packages/small.py"))
    whole = small.read_text(encoding="utf-8")
    for damage in (small.unlink, lambda: small.write_text(whole[:9], encoding="utf-8")):
        damage()
        done = project.run("setup")
        assert done.returncode == 0, done.stderr
        assert "small-1.0 is incomplete or damaged" in done.stderr
        assert small.read_text(encoding="utf-8") == whole
    assert "damaged" not in project.run("setup").stderr


def test_without_torch_setup_fails_until_it_can_install_it(project: ShellProject) -> None:
    shutil.rmtree(project.torch_file().parent)
    failed = project.run("setup", PIP_FIND_LINKS="/nowhere")
    assert failed.returncode == 1
    assert "still works" not in failed.stderr
    done = project.run("setup")
    assert done.returncode == 0, done.stderr
    assert "2.13.0+cpu" in project.torch_file().read_text(encoding="utf-8")


def test_a_dependency_that_requires_another_torch_is_an_error(project: ShellProject) -> None:
    project.require("torch>=2.11", "small", "greedy")
    done = project.run("setup")
    assert done.returncode == 1
    assert "ERROR: The update failed" in done.stderr
    assert "The packages could not be installed" in done.stderr
    assert "2.13.0+cpu" in project.torch_file().read_text(encoding="utf-8")
    project.require("torch>=2.11", "small")
    assert project.run("train").returncode == 3


def test_user_constraints_override_the_pins(project: ShellProject, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("small==2.0\n", encoding="utf-8")
    assert project.run("setup", "--constraints", str(own)).returncode == 0
    assert list(project.root.glob(".venv/lib/*/site-packages/small-2.0.dist-info"))
    assert project.run("setup", "--constraints", "none").returncode == 0
    assert list(project.root.glob(".venv/lib/*/site-packages/small-1.0.dist-info"))


def test_the_setup_log_is_utf_8(project: ShellProject) -> None:
    log = (project.root / "logs" / "setup.log").read_text(encoding="utf-8")
    assert "用户 测试 (x86) & !" in log
    assert "+ torch==2.13.0+cpu" in log


def test_a_killed_setup_is_completed_by_the_next_one(tmp_path: Path) -> None:
    project = ShellProject(tmp_path)
    for stop_at in (".venv/lib/*/site-packages/pip", ".venv/traindeck.json"):
        child = project.start("setup")
        while child.poll() is None and not list(project.root.glob(stop_at)):
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert child.returncode == -signal.SIGKILL
    done = project.run("train")
    assert done.returncode == 3, done.stderr
    assert "the previous setup did not finish" in done.stderr


def test_concurrent_setups_repair_a_partially_installed_package_once(project: ShellProject) -> None:
    next(project.root.glob(".venv/lib/*/site-packages/small-1.0.dist-info/INSTALLER")).unlink()
    state = project.root / ".venv" / "traindeck.json"
    state.write_text(state.read_text(encoding="utf-8").replace("true", "false", 1), encoding="utf-8")
    children = [project.start("setup"), project.start("setup")]
    outputs = [child.communicate(timeout=120)[1].decode("utf-8") for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    assert sum("small-1.0 is incomplete or damaged" in output for output in outputs) == 1
    assert sum("Another setup is running" in output for output in outputs) == 1
    assert sum("Setup finished in" in output for output in outputs) == 1


def test_with_a_driver_the_cpu_build_is_never_selected_and_the_gpu_is_verified(project: ShellProject) -> None:
    script = "#!/bin/sh\necho '580.95.05, 8.9'\n"
    (project.bin / "nvidia-smi").write_text(script, encoding="utf-8")
    (project.bin / "nvidia-smi").chmod(0o755)

    only_cpu = project.run("setup")
    assert only_cpu.returncode == 1
    assert "No source has PyTorch 2.13.0 (cu130)" in only_cpu.stderr
    assert "setup --torch cpu" in only_cpu.stderr

    write_torch(project.wheels, "2.13.0+cu130")
    broken = project.run("setup", FAKE_GPU="broken")
    assert broken.returncode == 6
    assert "does not support this GPU" in broken.stderr

    working = project.run("setup")
    assert working.returncode == 0
    assert "GPU: Fake GPU 3000" in working.stderr
    assert "2.13.0+cu130" in project.torch_file().read_text(encoding="utf-8")

    chosen = project.run("setup", "--torch", "cpu")
    assert chosen.returncode == 0
    assert "PyTorch build: cpu (set by you)" in chosen.stderr
    assert "2.13.0+cpu" in project.torch_file().read_text(encoding="utf-8")


def test_messages_are_chinese_in_a_chinese_terminal(tmp_path: Path) -> None:
    project = ShellProject(tmp_path)
    done = project.run("setup", TRAINDECK_LANG="", LC_ALL="", LANG="zh_CN.UTF-8")
    assert done.returncode == 0, done.stderr
    assert f"正在安装 Traindeck 到 {project.root / '.venv'}：首次启动。" in done.stderr
    assert "PyTorch 版本：cpu（未找到 NVIDIA 驱动）" in done.stderr
    assert "安装完成，用时" in done.stderr
