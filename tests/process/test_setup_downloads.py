"""Downloads of a setup from an index on loopback: broken connections, kills, damaged files, events for the window."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launcher_project import ShellProject, write_wheel
from package_index import PackageIndex, serve_packages

pytestmark = pytest.mark.skipif(os.name == "nt", reason="starts through train_gpu.sh")
LARGE = "large-1.0-py3-none-any.whl"
SIZE = 8_000_000


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    folder = tmp_path / "index"
    folder.mkdir()
    with serve_packages(folder) as index:
        yield index


@pytest.fixture
def project(tmp_path: Path, index: PackageIndex) -> ShellProject:
    """A project that requires a package of 8 MB, besides torch, and whose window needs a small one."""
    project = ShellProject(tmp_path)
    for wheel in project.wheels.iterdir():
        wheel.rename(index.wheels / wheel.name)
    write_wheel(index.wheels, "large", "1.0", {"large.py": "#" * SIZE})
    project.require("torch>=2.11", "small", "large")
    text = (project.root / "pyproject.toml").read_text(encoding="utf-8")
    window = text + "[tool.traindeck]\nwindow = ['small']\n"
    (project.root / "pyproject.toml").write_text(window, encoding="utf-8")
    return project


def events_of(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


def test_a_broken_connection_is_continued_where_it_broke(project: ShellProject, index: PackageIndex) -> None:
    index.cuts[LARGE], index.cut_after = 3, 2_000_000
    done = project.run("setup", **index.variables())
    assert done.returncode == 0, done.stderr
    assert index.cuts[LARGE] == 0
    assert index.sent[LARGE] < SIZE + 500_000  # nothing was sent twice


def test_a_killed_download_is_continued_by_the_next_setup(project: ShellProject, index: PackageIndex) -> None:
    index.rate = 4_000_000
    child = project.start("setup", **index.variables())
    while index.sent.get(LARGE, 0) < 3_000_000:
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    before = index.sent[LARGE]
    done = project.run("setup", **index.variables())
    assert done.returncode == 0, done.stderr
    assert SIZE <= index.sent[LARGE] < SIZE + 600_000, before
    assert not (project.root / ".venv-setup" / "downloads").exists()


def test_a_network_that_is_cut_at_ten_random_moments_only_delays_the_setup(
    project: ShellProject, index: PackageIndex
) -> None:
    moments, index.rate = random.Random(27), 1_000_000
    child = project.start("setup", **index.variables())
    for _ in range(10):
        time.sleep(moments.uniform(0.2, 1.2))
        index.offline = True
        time.sleep(moments.uniform(0.2, 1.0))
        index.offline = False
        if child.poll() is not None:  # uv gives up sooner than the downloads
            assert "network does not respond" in child.communicate()[1].decode("utf-8")
            child = project.start("setup", **index.variables())
    index.rate = 0.0
    assert child.wait(120) == 0, child.communicate()[1].decode("utf-8")
    child.communicate()
    assert index.sent[LARGE] < SIZE + 1_500_000  # at most what was under way at each cut
    assert project.run("train", **index.variables()).stderr == ""


def test_a_damaged_file_is_an_error_that_names_it(project: ShellProject, index: PackageIndex) -> None:
    index.wrong_hash = "large"
    done = project.run("setup", **index.variables())
    assert done.returncode == 1
    assert f"{LARGE} from http://127.0.0.1" in done.stderr
    assert "SHA-256 is wrong" in done.stderr
    index.wrong_hash = ""
    assert project.run("setup", **index.variables()).returncode == 0


def test_the_window_is_told_what_is_downloaded_and_how_far_it_is(project: ShellProject, index: PackageIndex) -> None:
    index.rate = 8_000_000
    done = project.run("setup", "--output", "json", **index.variables())
    events = events_of(done.stdout)
    assert events[-1] == {"type": "end", "code": 0, "text": "", "restart": False}
    plan = next(event for event in events if event["type"] == "plan")
    assert plan["torch"] == "cpu"
    assert SIZE < int(str(plan["bytes"])) < SIZE + 100_000
    progress = [event for event in events if event["type"] == "progress"]
    assert [event["done"] for event in progress] == sorted(int(str(event["done"])) for event in progress)
    assert progress[-1]["done"] == progress[-1]["total"] == plan["bytes"]
    assert any(event["rate"] and event["eta_s"] is not None for event in progress)
    assert [event["part"] for event in events if event["type"] == "ready"] == ["data", "all"]


def test_an_error_reaches_the_window_in_words(project: ShellProject, index: PackageIndex) -> None:
    project.require("torch>=2.11", "small", "large", "missing-package")
    done = project.run("setup", "--output", "json", **index.variables())
    end = events_of(done.stdout)[-1]
    assert (end["type"], end["code"]) == ("end", 1)
    assert "The packages could not be installed" in str(end["text"])
    assert "missing-package" in str(end["text"])


def test_the_first_start_installs_only_what_the_window_needs(project: ShellProject, index: PackageIndex) -> None:
    app = project.root / "app"
    app.mkdir()
    (app / "__main__.py").write_text("import small; print('the window is open')", encoding="utf-8")
    done = project.run(**index.variables())
    assert (done.returncode, done.stdout) == (0, "the window is open\n"), done.stderr
    assert LARGE not in index.sent
    state = json.loads((project.root / ".venv" / "traindeck.json").read_bytes())
    assert (state["window"], state["complete"]) == (True, False)
    # The window has the rest installed by this command, with its own Python.
    python = project.root / ".venv" / "bin" / "python"
    command = [str(python), "-I", str(project.root / "train_gpu.py"), "setup", "--output", "json"]
    environment = project.environment(**index.variables())
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    assert json.loads((project.root / ".venv" / "traindeck.json").read_bytes())["complete"] is True
    assert project.run("train", **index.variables()).stderr == ""


@pytest.mark.parametrize("uv", ["", "none"])
def test_the_proxy_of_pip_is_used(project: ShellProject, index: PackageIndex, uv: str) -> None:
    proxy = index.url.removesuffix("/simple")
    sources = {"PIP_INDEX_URL": "http://packages.test/simple", "PIP_TRUSTED_HOST": "packages.test", "PIP_PROXY": proxy}
    variables = {**index.variables(), **sources, **({"TRAINDECK_UV": uv} if uv else {})}
    done = project.run("setup", **variables)
    assert done.returncode == 0, done.stderr
    assert set(index.proxied) == {"packages.test"}
    assert index.sent[LARGE] >= SIZE


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="mounts a small disk")
@pytest.mark.parametrize(("megabytes", "environment"), [(32, "here"), (7, "{}/elsewhere")])
def test_a_disk_that_is_too_small_is_reported_before_the_download(
    project: ShellProject, index: PackageIndex, megabytes: int, environment: str
) -> None:
    small = project.root.parent / "small disk"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(small)], check=True)
    try:
        project.root = Path(shutil.move(project.root, small))
        done = project.run("setup", "--environment", environment.format(small.parent), **index.variables())
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert done.returncode == 7, done.stderr
    assert f"GB are needed in {project.root / ('.venv' if environment == 'here' else '.venv-setup')}. " in done.stderr
    assert "Free some space and start again." in done.stderr
    assert index.sent[LARGE] < 100_000  # its metadata


def test_kept_downloads_repair_the_environment_without_a_network(project: ShellProject, index: PackageIndex) -> None:
    assert project.run("setup", "--keep-downloads", "yes", **index.variables()).returncode == 0
    index.offline = True
    next(project.root.glob(".venv/lib/*/site-packages/large-1.0.dist-info/INSTALLER")).unlink()
    state = project.root / ".venv" / "traindeck.json"
    state.write_text(state.read_text(encoding="utf-8").replace("true", "false", 1), encoding="utf-8")
    done = project.run("train", **index.variables())
    assert done.returncode == 3, done.stderr
    assert "large-1.0 is incomplete or damaged" in done.stderr
    assert "PyTorch 2.13.0+cpu from kept downloads" in done.stderr
    assert project.run("train", **index.variables()).stderr == ""


def test_without_uv_pip_does_the_work(project: ShellProject, index: PackageIndex) -> None:
    done = project.run("setup", **index.variables(), TRAINDECK_UV="none")
    assert done.returncode == 0, done.stderr
    assert "Successfully installed" in (project.root / "logs" / "setup.log").read_text(encoding="utf-8")
    assert project.run("train", **index.variables(), TRAINDECK_UV="none").stderr == ""
