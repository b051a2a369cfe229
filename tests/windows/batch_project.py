"""A fake project started by train_gpu.bat."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from launcher_project import KILL_BEFORE_EVENT, LauncherProject

BASE = Path(getattr(sys, "_base_executable", sys.executable)).parent  # folder of a supported Python
SYSTEM = Path(os.environ.get("SYSTEMROOT", "C:\\Windows"))
# A location of installed Pythons that environment variables cannot change.
HIDDEN = {"train_gpu.bat": [b"%SYSTEMDRIVE%"]}

# Behaves like Python, but reports another version and its own path as sys.executable.
OTHER_VERSION = """
import runpy, subprocess, sys
sys.version_info = {version}
sys.executable = sys._base_executable = sys.argv[0]
arguments = sys.argv[1:]
while arguments[0] in ("-I", "-S", "-X", "utf8"):
    arguments.pop(0)
if arguments[0] == "-c":
    exec(arguments[1])
elif arguments[0] == "-m":
    sys.exit(subprocess.call([r"BASE_PYTHON", *arguments]))
else:
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
""".replace("BASE_PYTHON", str(BASE / "python.exe"))


def write_program(path: Path, code: str) -> None:
    """Write an .exe that runs `code`, built like the console scripts of pip."""
    import pip._vendor.distlib as launchers

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("__main__.py", code)
    launcher = (Path(launchers.__file__).parent / "t64.exe").read_bytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(launcher + f"#!{BASE / 'python.exe'}\r\n".encode() + archive.getvalue())


class BatchProject(LauncherProject):
    """A project started by train_gpu.bat with a typed command line."""

    def environment(self, **variables: str) -> dict[str, str]:
        """PATH has the system folders and the Python of these tests.

        The packages are in the project folder: test folders are too deep for real packages, but not for fake ones.
        """
        path = os.pathsep.join(map(str, [self.bin, BASE, SYSTEM / "System32", SYSTEM]))
        options = {"TRAINDECK_TORCH": "cpu", "TRAINDECK_ENVIRONMENT": "here"}
        return {**super().environment(), "PATH": path, **options, **variables}

    def without_python(self, *folders: Path) -> dict[str, str]:
        """An environment with `folders` on the PATH, in which no installed Python is found."""
        for file, locations in HIDDEN.items():
            text = (self.root / file).read_bytes()
            for location in locations:
                assert location in text
                text = text.replace(location, b"NOWHERE")
            (self.root / file).write_bytes(text)
        nowhere = dict.fromkeys(("LOCALAPPDATA", "PROGRAMFILES", "USERPROFILE", "APPDATA"), "C:\\nowhere")
        path = os.pathsep.join(map(str, [*folders, SYSTEM / "System32"]))
        return self.environment(PATH=path, TRAINDECK_UV="none", **nowhere)  # uv would search the registry

    def line(self, typed: str) -> str:
        return f'cmd /d /s /c ""{self.root}\\train_gpu.bat" {typed}"'

    def start(self, typed: str) -> subprocess.Popen[bytes]:
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

    def copy_to(self, root: Path) -> BatchProject:
        """Copy the project without pip, whose file names are too long below a deep folder."""
        copy = BatchProject.__new__(BatchProject)
        copy.root, copy.bin, copy.wheels = root, self.bin, self.wheels
        shutil.copytree(self.root, root, ignore=shutil.ignore_patterns("pip*", "setuptools*", "pkg_resources"))
        return copy

    @property
    def log(self) -> str:
        return (self.root / "logs" / "setup.log").read_text(encoding="utf-8")

    # --- updates

    def require_version(self, version: str, *packages: str) -> None:
        """Require this version of `small`, and more packages, from the next start on."""
        self.require("torch>=2.11", "small", *packages)
        (self.root / "constraints.txt").write_text(f"torch==2.13.0\nsmall=={version}\n", encoding="utf-8")

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def installed_version(self) -> str:
        """The installed version of `small` if the setup is complete and current, else empty."""
        lists = self.venv.glob("Lib/site-packages/small-*.dist-info")
        found = [folder.name.removeprefix("small-").removesuffix(".dist-info") for folder in lists]
        complete = self.folders() == {".venv"} and json.loads((self.venv / "traindeck.json").read_bytes())["complete"]
        required = (self.root / "constraints.txt").read_text(encoding="utf-8")
        return found[0] if complete and len(found) == 1 and f"small=={found[0]}\n" in required else ""

    def program(self, name: str, *arguments: str) -> str:
        """Output of a console script of .venv."""
        command = [str(self.venv / "Scripts" / f"{name}.exe"), *arguments]
        environment = {**self.environment(), "PYTHONUTF8": "1"}
        return subprocess.check_output(command, env=environment, stderr=subprocess.DEVNULL, encoding="utf-8").strip()

    def small_is(self, version: str) -> bool:
        return self.program("small") == f"small {version} in {self.venv}"

    def folders(self) -> set[str]:
        """Environments except the previous one, to which one can go back."""
        return {path.name for path in self.root.glob(".venv*")} - {".venv-setup", ".venv.old"}

    def kill_before(self, event: str, text: str) -> int:
        """Start and kill the launcher right before this audit event."""
        python, script = str(self.venv / "Scripts" / "python.exe"), str(self.root / "train_gpu.py")
        command = [python, "-I", "-X", "utf8", "-c", KILL_BEFORE_EVENT, event, text, script, "train"]
        null = subprocess.DEVNULL
        return subprocess.run(command, env=self.environment(), stdin=null, capture_output=True, check=False).returncode
