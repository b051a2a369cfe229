"""Traindeck started through train_gpu.bat, with packages made here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from stand_ins import Project

BASE = Path(getattr(sys, "_base_executable", sys.executable)).parent  # a Python that fits, by its folder
SYSTEM = Path(os.environ.get("SYSTEMROOT", "C:\\Windows"))
# What leads to Pythons that were really installed, and cannot be led elsewhere by the environment.
HIDDEN = {
    "train_gpu.bat": [b"%SYSTEMDRIVE%\\Python3*"],
    "launcher/pythons.py": [b"SYSTEMDRIVE", b"SOFTWARE\\\\Python\\\\PythonCore"],
}


class Batch(Project):
    """Started through train_gpu.bat, by a line as one types it."""

    def environment(self, **more: str) -> dict[str, str]:
        """Only what every Windows has on its PATH, and the Python of these tests as if it were installed there."""
        folders = [self.bin, BASE, SYSTEM / "System32", SYSTEM]
        return {**super().environment(), "PATH": os.pathsep.join(map(str, folders)), "TRAINDECK_TORCH": "cpu", **more}

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
