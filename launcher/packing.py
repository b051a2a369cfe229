"""Command `pack`: a zip of Traindeck with all its packages, for a machine without internet.

In the unpacked copy, the folder `wheels` is the only source of packages (`packages.is_packed`).
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE

from launcher import places
from launcher.choices import get_choices
from launcher.failures import SetupError, tool_error
from launcher.messages import message, print_and_log
from launcher.packages import Resolver, fetch, requirements, with_sizes, write_constraints
from launcher.places import WINDOWS
from launcher.pythons import PRIVATE_PYTHONS
from launcher.torch_builds import TORCH_TAGS, choose_torch, query_driver
from launcher.uv import UV_VERSION, find_uv

# Names for the user, of uv, and of sys.platform.
PLATFORMS = {"windows": ("x86_64-pc-windows-msvc", "win32"), "linux": ("x86_64-manylinux_2_34", "linux")}
CREATED_FOLDERS = {".git", ".venv", ".venv.new", ".venv.old", ".venv-setup", "cache", "logs", "runs", "wheels"}


def pack(arguments: "list[str]") -> int:
    """Write the zip. A failure leaves no file."""
    parser = argparse.ArgumentParser("train_gpu pack", description="Zip Traindeck with its packages.")
    parser.add_argument("file", help="the zip to write")
    here = "windows" if WINDOWS else "linux"
    parser.add_argument("--platform", choices=tuple(PLATFORMS), default=here, help="the system of the other machine")
    parser.add_argument("--torch", choices=TORCH_TAGS, help="its PyTorch build; without: that for the driver here")
    parser.add_argument("--python", default=platform.python_version(), help="the version of its Python, such as 3.12")
    options = parser.parse_args(arguments)
    version = ".".join(options.python.split(".")[:2])
    if not find_uv():
        raise SetupError(message("launcher.pack_needs_uv"))
    tag = options.torch or choose_torch(query_driver())[0]
    started = time.monotonic()
    wheels = collect_wheels(tag, options.platform, version)
    target, part = Path(options.file), Path(options.file + ".part")
    try:
        with zipfile.ZipFile(str(part), "w", zipfile.ZIP_STORED) as archive:
            write_archive(archive, target.stem, wheels, tag, same_system=options.platform == here)
        part.replace(target)
    finally:
        if part.exists():
            part.unlink()
    size, seconds = target.stat().st_size / 1e6, time.monotonic() - started
    print_and_log(message("launcher.packed", path=target, size=size, seconds=seconds, python=version))
    return 0


def collect_wheels(tag: str, system: str, version: str) -> "list[Path]":
    """Resolve and download the packages of another machine."""
    folder = places.STATE_FOLDER / "pack"
    folder.mkdir(parents=True, exist_ok=True)
    name, sys_platform = PLATFORMS[system]
    resolver = Resolver(folder, ["--python-platform", name, "--python-version", version, "--only-binary", ":all:"])
    choices = get_choices(None)
    source = resolver.find_torch(tag, choices["mirror"], sys_platform)
    constraints = write_constraints(folder, choices["constraints"], "torch===" + source.version)
    wanted = [*requirements(dev=False), "pip", "uv==" + UV_VERSION]
    packages, output = resolver.resolve(wanted, constraints, source.options)
    if not packages:
        raise tool_error(message("launcher.packages_not_installed"), output)
    return fetch(with_sizes(packages))


def write_archive(archive: zipfile.ZipFile, name: str, wheels: "list[Path]", tag: str, same_system: bool) -> None:
    for path in own_files():
        archive.write(str(path), f"{name}/{path.relative_to(places.ROOT).as_posix()}", zipfile.ZIP_DEFLATED)
    for wheel in wheels:
        archive.write(str(wheel), f"{name}/{places.PACKED_WHEELS.name}/{wheel.name}")
    archive.writestr(f"{name}/{places.STATE_FOLDER.name}/choices.json", json.dumps({"torch": tag}))
    private = places.STATE_FOLDER / PRIVATE_PYTHONS
    for path in sorted(private.rglob("*")) if same_system else []:
        if path.is_file():
            archive.write(str(path), f"{name}/{path.relative_to(places.ROOT).as_posix()}", zipfile.ZIP_DEFLATED)


def own_files() -> "Iterator[Path]":
    """Files of Traindeck itself: those that git knows, else all but what it creates."""
    command = ["git", "-C", str(places.ROOT), "ls-files", "-z"]
    listed = b""
    if (places.ROOT / ".git").exists():
        try:
            listed = subprocess.run(command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL).stdout
        except OSError:  # no git
            listed = b""
    if listed:
        found = [places.ROOT / name for name in listed.decode(sys.getfilesystemencoding()).split("\0") if name]
        yield from (path for path in found if path.is_file())
        return
    for folder, folders, files in os.walk(str(places.ROOT)):
        skipped = CREATED_FOLDERS if Path(folder) == places.ROOT else {"__pycache__"}
        folders[:] = [name for name in folders if name not in skipped]
        yield from (Path(folder) / name for name in files if not name.endswith(".pyc"))
