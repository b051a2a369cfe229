"""The wheel: its content, and the program that pip installs from it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.core.trainer_process import TINY, text_file
from trainer_core import __version__, presets
from trainer_core.remote import host

pytestmark = pytest.mark.skipif(os.name == "nt", reason="its environments have other folders")
pytest.importorskip("setuptools", minversion="77", reason="setuptools builds the wheel")

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("app", "assets", "bench", "docs", "launcher", "presets", "tests", "trainer_core")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for name in FOLDERS:  # a build leaves files beside the sources
        shutil.copytree(ROOT / name, folder / "clone" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder / "clone")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, "."]
    subprocess.run(command, cwd=folder / "clone", check=True, timeout=120)
    [built] = folder.glob("*.whl")
    return built


class Installation:
    """An environment with Traindeck from a wheel and the packages of this environment, and a user without settings."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.programs, self.home = folder / "env" / "bin", folder / "home"
        self.home.mkdir(parents=True)
        venv.create(folder / "env", symlinks=True)
        [self.packages] = folder.glob("env/lib/python3*/site-packages")
        (self.packages / "others.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
        self.run("python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel))

    def run(self, program: str, *arguments: str) -> str:
        """Run a program of the environment in the user's folder. Returns its output."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRAINDECK_"))}
        own = {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / ".config"), "QT_QPA_PLATFORM": "offscreen"}
        command = [str(self.programs / program), *arguments]
        result = subprocess.run(command, cwd=self.home, env={**kept, **own}, capture_output=True, timeout=120)
        assert result.returncode == 0, result.stderr.decode()
        return result.stdout.decode()


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("installation") / "我的 程序 & co", wheel)


def test_the_wheel_contains_the_program_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    packages = [path for name in ("app", "trainer_core") for path in (ROOT / name).rglob("*")]
    beside = [path for name in ("presets", "docs", "launcher", "assets/icons") for path in (ROOT / name).rglob("*")]
    expected = {path.relative_to(ROOT).as_posix() for path in packages if path.is_file() and path.suffix != ".pyc"}
    for path in (*beside, ROOT / "LICENSE", ROOT / "assets" / "traindeck.png"):
        if path.is_file() and path.suffix != ".pyc":
            expected.add(f"trainer_core/program/{path.relative_to(ROOT).as_posix()}")
    assert expected - names == set()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"app", "trainer_core", f"traindeck-{__version__}.dist-info", f"traindeck-{__version__}.data"}
    assert not [name for name in names if "/tests/" in name or "/bench/" in name or "make_" in name]


def files_of(installation: Installation) -> set[Path]:
    return {path for path in installation.packages.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_the_installed_command_trains_and_generates_and_writes_only_below_the_home_folder(
    installation: Installation,
) -> None:
    before = files_of(installation)
    assert installation.run("traindeck", "--version") == f"Traindeck, version {__version__}\n"
    listed = installation.run("traindeck", "presets", "--output", "json").splitlines()
    assert [json.loads(line)["name"] for line in listed] == presets.names()
    data = text_file(installation.home)
    installation.run("traindeck", "train", "--preset", "quickstart", *TINY, "--data", data.name, "--max-steps", "2")
    text = installation.run("traindeck", "generate", "latest", "--prompt", "第", "--max-tokens", "3")
    assert text.startswith("第")
    runs = installation.home / "Traindeck" / "runs"
    assert [run.name.split("-")[0] for run in runs.iterdir()] == ["quickstart"]
    assert str(runs.parent) in installation.run("traindeck", "doctor")
    assert files_of(installation) == before


# Starts the window from its entry point, and prints what the user sees.
WINDOW = """
import json, sys
from importlib.metadata import entry_points
from app import __main__ as program
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QDialog, QTextBrowser
build_controller = program.build_controller
def build_and_report(application, options):
    controller = build_controller(application, options)
    def report():
        window = controller.window
        combo_box = window.setup.presets.combo_box
        window.menus.actions["guide"].trigger()
        guide = window.findChild(QDialog, "document").findChild(QTextBrowser)
        print(json.dumps({
            "presets": [name for row in range(combo_box.count()) if (name := combo_box.itemData(row))],
            "icon": window.windowIcon().pixmap(64, 64).width(),
            "guide": guide.toPlainText(),
            "start": window.menus.actions["start"].text(),
        }))
        controller.shutdown()
    controller.window.first_painted.connect(lambda: QTimer.singleShot(200, report))
    return controller
program.build_controller = build_and_report
sys.argv[1:] = ["--lang", "zh"]
[start] = entry_points(group="gui_scripts", name="traindeck-window")
sys.exit(start.load()())
"""


def test_the_installed_window_has_its_presets_icons_guide_and_chinese(installation: Installation) -> None:
    assert "usage: traindeck" in installation.run("traindeck-window", "--help")
    shown = json.loads(installation.run("python", "-P", "-c", WINDOW))
    assert shown["presets"] == presets.names()
    assert shown["icon"] == 64
    assert "使用指南" in shown["guide"]
    assert "开始" in shown["start"]


def test_another_machine_receives_the_same_program_from_an_installation(installation: Installation) -> None:
    code = "from trainer_core.remote import host; print([(f.name, f.digest) for f in host.list_program()])"
    sent = [(file.name, file.digest) for file in host.list_program()]
    assert installation.run("python", "-P", "-c", code) == f"{sent}\n"
