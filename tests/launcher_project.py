"""A launcher project with fake packages and a fake trainer, whose setup takes seconds."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
UV = shutil.which("uv", path=str(Path(sys.executable).parent)) or "none"

TORCH = """
import os
from torch.version import __version__
class Tensor:
    def __add__(self, other): return self
    def item(self): return 2
def ones(*shape, device):
    if os.environ.get("FAKE_GPU") == "broken":
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
    return Tensor()
class cuda:
    get_device_name = staticmethod(lambda index: "Fake GPU 3000")
"""

TRAINER = """
import json, os, sys
received = {"args": sys.argv[1:], "cwd": os.getcwd(), "stdin": sys.stdin.read(), "utf8": sys.flags.utf8_mode}
print(json.dumps(received))
sys.exit(3)
"""


def write_wheel(folder: Path, name: str, version: str, files: dict[str, str], requires: str = "") -> None:
    """Write a wheel that pip installs."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    wheel = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel}
    rows = []
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in contents.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(text.encode())}")
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))


def write_torch(folder: Path, version: str) -> None:
    files = {"torch/__init__.py": TORCH, "torch/version.py": f"__version__ = '{version}'\n"}
    write_wheel(folder, "torch", version, files)


def write_small(folder: Path, version: str) -> None:
    """Write a package with a program that prints its version and its environment."""
    code = f"import sys\n\n\ndef main():\n    print('small {version} in ' + sys.prefix)\n"
    code += "#" * int(version[0])  # bytecode is valid for every source of the same second and the same size
    entry_points = "[console_scripts]\nsmall = small:main\n"
    write_wheel(
        folder, "small", version, {"small.py": code, f"small-{version}.dist-info/entry_points.txt": entry_points}
    )


class LauncherProject:
    """A copy of the launcher with a fake trainer and its own package index."""

    def __init__(self, folder: Path, name: str = "用户 测试 (x86) & !") -> None:
        self.root = folder / name
        self.wheels = folder / "wheels"
        self.bin = folder / "bin"
        for directory in (self.root / "trainer_core", self.wheels, self.bin):
            directory.mkdir(parents=True)
        for launcher in ("train_gpu.py", "train_gpu.sh", "train_gpu.bat"):
            shutil.copy(ROOT / launcher, self.root)
        shutil.copytree(ROOT / "launcher", self.root / "launcher", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "trainer_core" / "texts", self.root / "trainer_core" / "texts")
        (self.root / "trainer_core" / "__init__.py").touch()
        (self.root / "trainer_core" / "__main__.py").write_text(TRAINER, encoding="utf-8")
        (self.root / "constraints.txt").write_text("torch==2.13.0\nsmall==1.0\n", encoding="utf-8")
        self.require("torch>=2.11", "small")
        write_torch(self.wheels, "2.13.0+cpu")
        write_torch(self.wheels, "2.15.0")
        for version in ("1.0", "2.0"):
            write_small(self.wheels, version)
        write_wheel(self.wheels, "greedy", "1.0", {"greedy.py": ""}, "torch>=2.14")

    def require(self, *packages: str) -> None:
        text = f"[project]\nname = 'x'\nversion = '1'\ndependencies = {json.dumps(packages)}\n"
        text += "[project.optional-dependencies]\ndev = []\n"
        (self.root / "pyproject.toml").write_text(text, encoding="utf-8")

    def environment(self, **variables: str) -> dict[str, str]:
        """This environment in English, without settings of pip and Traindeck, with `wheels` as the only index."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "TRAINDECK_"))}
        env.update(
            TRAINDECK_UV=UV,
            PIP_NO_INDEX="1",
            PIP_FIND_LINKS=str(self.wheels),
            PIP_CONFIG_FILE=os.devnull,
            TRAINDECK_LANG="en",
        )
        return {**env, **variables}


class ShellProject(LauncherProject):
    """A project started by train_gpu.sh."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self.bin / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")  # not executable: no driver

    def environment(self, **variables: str) -> dict[str, str]:
        env = super().environment()
        path = os.pathsep.join([str(self.bin), str(Path(sys.executable).parent), env["PATH"]])
        return {**env, "PATH": path, **variables}

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        command = [str(self.root / "train_gpu.sh"), *arguments]
        null = subprocess.DEVNULL
        return subprocess.Popen(
            command, env=self.environment(**variables), stdin=null, stdout=null, stderr=subprocess.PIPE
        )

    def run(self, *arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "train_gpu.sh"), *arguments],
            env=self.environment(**variables),
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
        )

    def torch_file(self) -> Path:
        return next(self.root.glob(".venv/lib/python3*/site-packages/torch/version.py"))


# Runs train_gpu.py and kills it right before the given audit event.
KILL_BEFORE_EVENT = """
import os, runpy, sys
event, text = sys.argv[1:3]
sys.argv = sys.argv[3:]
def kill(name, details):
    if name == event and text in repr(details):
        os._exit(99)
sys.addaudithook(kill)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
