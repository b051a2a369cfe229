"""Traindeck started through train_gpu.bat, with packages made here."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from stand_ins import CUT_OFF, Project

BASE = Path(getattr(sys, "_base_executable", sys.executable)).parent  # a Python that fits, by its folder
SYSTEM = Path(os.environ.get("SYSTEMROOT", "C:\\Windows"))
# What leads to Pythons that were really installed, and cannot be led elsewhere by the environment.
HIDDEN = {
    "train_gpu.bat": [b"%SYSTEMDRIVE%"],
    "launcher/pythons.py": [b"SYSTEMDRIVE", b"SOFTWARE\\\\Python\\\\PythonCore"],
}

# Runs what it is given as Python would, but calls itself another version. A path that is not our interpreter's is
# what train_gpu.py then sees as the interpreter that runs it.
OTHER_VERSION = """
import runpy, sys
sys.version_info = {version}
sys.executable = sys._base_executable = sys.argv[0]
arguments = sys.argv[1:]
while arguments[0] in ("-I", "-S", "-X", "utf8"):
    arguments.pop(0)
if arguments[0] == "-c":
    exec(arguments[1])
else:
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
"""


def write_program(path: Path, code: str) -> None:
    """A small .exe that runs this code, made as pip makes those of console scripts."""
    import pip._vendor.distlib as launchers

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("__main__.py", code)
    launcher = (Path(launchers.__file__).parent / "t64.exe").read_bytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(launcher + f"#!{BASE / 'python.exe'}\r\n".encode() + archive.getvalue())


class Batch(Project):
    """Started through train_gpu.bat, by a line as one types it."""

    def environment(self, **more: str) -> dict[str, str]:
        """Only what every Windows has on its PATH, and the Python of these tests as if it were installed there.

        The folders of tests are too deep for real packages, but not for those that are made here.
        """
        path = os.pathsep.join(map(str, [self.bin, BASE, SYSTEM / "System32", SYSTEM]))
        wishes = {"TRAINDECK_TORCH": "cpu", "TRAINDECK_ENVIRONMENT": "here"}
        return {**super().environment(), "PATH": path, **wishes, **more}

    def without_python(self, *folders: Path) -> dict[str, str]:
        """An environment with these folders on the PATH, in which no installed Python is found."""
        for file, places in HIDDEN.items():
            text = (self.root / file).read_bytes()
            for place in places:
                assert place in text
                text = text.replace(place, b"NOWHERE")
            (self.root / file).write_bytes(text)
        nowhere = dict.fromkeys(("LOCALAPPDATA", "PROGRAMFILES", "USERPROFILE", "APPDATA"), "C:\\nowhere")
        return self.environment(PATH=os.pathsep.join(map(str, [*folders, SYSTEM / "System32"])), **nowhere)

    def line(self, typed: str) -> str:
        return f'cmd /d /s /c ""{self.root}\\train_gpu.bat" {typed}"'

    def begin(self, typed: str) -> subprocess.Popen[bytes]:
        null = subprocess.DEVNULL
        return subprocess.Popen(self.line(typed), env=self.environment(), stdin=null, stdout=null, stderr=null)

    def run(self, typed: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.line(typed),
            env=env or self.environment(),
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=170,
            cwd=SYSTEM,
            check=False,
        )

    def copied(self, root: Path) -> Batch:
        """What was set up, in another folder.

        Without what a start does not need: pip's own files have names that are too long below a deep folder.
        """
        copy = Batch.__new__(Batch)
        copy.root, copy.bin, copy.wheels = root, self.bin, self.wheels
        shutil.copytree(self.root, root, ignore=shutil.ignore_patterns("pip*", "setuptools*", "pkg_resources"))
        return copy

    @property
    def log(self) -> str:
        return (self.root / "logs" / "setup.log").read_text(encoding="utf-8")

    # --- updates

    def want(self, version: str, *more: str) -> None:
        """From the next start on, this version of `small`, and more packages."""
        self.require("torch>=2.11", "small", *more)
        (self.root / "constraints.txt").write_text(f"torch==2.13.0\nsmall=={version}\n", encoding="utf-8")

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def has(self) -> str:
        """The version of `small` that was set up to the end and is wanted still; or nothing."""
        lists = self.venv.glob("Lib/site-packages/small-*.dist-info")
        found = [folder.name.removeprefix("small-").removesuffix(".dist-info") for folder in lists]
        whole = self.folders() == {".venv"} and json.loads((self.venv / "traindeck.json").read_bytes())["complete"]
        wanted = (self.root / "constraints.txt").read_text(encoding="utf-8")
        return found[0] if whole and len(found) == 1 and f"small=={found[0]}\n" in wanted else ""

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
