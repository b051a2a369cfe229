"""Command `pack`: a zip of Traindeck with all its packages, for a machine without internet.

In the unpacked copy, the folder `wheels` is the only source of packages (`uv.packed_options`).
"""

import argparse
import json
import os
import platform
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

from launcher import places
from launcher.choices import get_choices
from launcher.downloads import Downloads, with_sizes
from launcher.messages import SetupError, message, print_and_log
from launcher.packages import Resolver, requirements
from launcher.places import WINDOWS
from launcher.running import setup_lock
from launcher.sources import TORCH_TAGS, choose_torch, query_driver
from launcher.uv import PRIVATE_PYTHONS, UV_VERSION, find_uv

# Names for the user, of uv, and of sys.platform.
PLATFORMS = {"windows": ("x86_64-pc-windows-msvc", "win32"), "linux": ("x86_64-manylinux_2_34", "linux")}
# What a clone has for running Traindeck (compare setup.py). Other files in its folder belong to the user.
PROGRAM_FOLDERS = ("app", "assets", "docs", "launcher", "presets", "trainer_core")
PROGRAM_FILES = (
    *("LICENSE", "README.md", "README.zh-CN.md", "CHANGELOG.md", "CONTRIBUTING.md", "setup.py"),
    *("constraints.txt", "pyproject.toml", "train_gpu.py", "train_gpu.sh", "train_gpu.bat"),
)


def pack(arguments: "list[str]") -> int:
    """Write the zip. A failure leaves no file."""
    parser = argparse.ArgumentParser("train_gpu pack", description="Zip Traindeck with its packages.")
    parser.add_argument("file", help="the zip to write")
    here = "windows" if WINDOWS else "linux"
    parser.add_argument("--platform", choices=tuple(PLATFORMS), default=here, help="the system of the other machine")
    parser.add_argument("--torch", choices=TORCH_TAGS, help="its PyTorch build; without: that for the driver here")
    parser.add_argument("--python", default=platform.python_version(), help="the version of its Python, such as 3.12")
    options = parser.parse_args(arguments)
    if not find_uv():
        raise SetupError(message("launcher.pack_needs_uv"))
    if Path(options.file).is_dir():
        raise SetupError(message("launcher.pack_to_folder", path=options.file), 2)
    with setup_lock():  # a setup uses and removes the same downloads
        write_pack(options, here)
        if get_choices()["keep_downloads"] != "yes":
            shutil.rmtree(str(places.DOWNLOADS), ignore_errors=True)
    return 0


def write_pack(options: argparse.Namespace, here: str) -> None:
    """`here`: name of this platform."""
    version = ".".join(options.python.split(".")[:2])
    tag = options.torch or choose_torch(query_driver())[0]
    folders = [places.ROOT / name for name in PROGRAM_FOLDERS]
    if options.platform == here:
        folders.append(places.STATE_FOLDER / PRIVATE_PYTHONS)
    files = [places.ROOT / name for name in PROGRAM_FILES] + [path for top in folders for path in files_below(top)]
    target, part = Path(options.file), Path(options.file + ".part")
    try:
        with zipfile.ZipFile(str(part), "w", strict_timestamps=False) as archive:
            wheels = collect_wheels(tag, options.platform, version)
            for path in filter(Path.is_file, files):
                name = path.relative_to(places.ROOT).as_posix()
                archive.write(str(path), f"{target.stem}/{name}", zipfile.ZIP_DEFLATED)
            for wheel in wheels:
                archive.write(str(wheel), f"{target.stem}/{places.PACKED_WHEELS.name}/{wheel.name}")
            archive.writestr(f"{target.stem}/{places.STATE_FOLDER.name}/choices.json", json.dumps({"torch": tag}))
        part.replace(target)
    finally:
        if part.exists():
            part.unlink()
    print_and_log(message("launcher.packed", path=target, size=target.stat().st_size / 1e6, python=version))


def collect_wheels(tag: str, system: str, version: str) -> "list[Path]":
    """Resolve and download the packages of another machine."""
    folder = places.STATE_FOLDER / "pack"
    folder.mkdir(parents=True, exist_ok=True)
    name, sys_platform = PLATFORMS[system]
    target = ["--python-platform", name, "--python-version", version, "--only-binary", ":all:"]
    resolver = Resolver(folder, dict(get_choices(), constraints=""), target)  # a pack has those of Traindeck
    source = resolver.find_torch(tag, sys_platform)
    wanted = [*requirements(), "pip", "uv==" + UV_VERSION]
    packages = with_sizes(resolver.lock(wanted, "torch===" + source.version, source.options))
    with Downloads(packages) as downloads:
        return downloads.wait_for(packages)


def files_below(top: Path) -> "Iterator[Path]":
    """Files below a folder without compiled modules, hidden files, and names that a zip cannot have."""
    for folder, folders, files in os.walk(str(top)):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        yield from (Path(folder) / name for name in files if name.isprintable() and not name.startswith("."))
