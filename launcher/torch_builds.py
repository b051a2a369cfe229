"""Selects the torch build for the driver and GPU, and its sources."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import NamedTuple

from launcher.messages import log, message
from launcher.mirrors import Mirror
from launcher.places import WINDOWS

# The builds of torch 2.13; there is no cu128 any more (https://github.com/pytorch/pytorch/issues/178665).
TORCH_TAGS = ("cpu", "cu126", "cu130", "cu132")
TORCH_INDEX = "https://download.pytorch.org/whl/"
PYPI_LINUX_TAG = "cu130"  # what PyPI's plain Linux wheel of torch 2.13 is built with; on Windows it is CPU-only


class Driver(NamedTuple):
    """The NVIDIA driver. `version` is empty if it is installed but does not respond."""

    version: str
    compute_capability: float  # of the newest GPU; 0: unknown


def nvidia_smi() -> str:
    """Path of nvidia-smi, or empty. PATH may lack System32."""
    spots = [str(Path(os.environ.get("WINDIR", "C:\\Windows")) / "System32/nvidia-smi.exe")] if WINDOWS else []
    spots += ["/usr/lib/wsl/lib/nvidia-smi"]
    return shutil.which("nvidia-smi") or next((spot for spot in spots if Path(spot).exists()), "")


def query_driver() -> "Driver | None":
    """Driver version and highest compute capability from nvidia-smi, or None without it. Takes up to seconds."""
    program = nvidia_smi()
    if not program:
        return None
    for fields in ("driver_version,compute_cap", "driver_version"):  # old drivers lack compute_cap
        command = [program, "--query-gpu=" + fields, "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, timeout=30)
            answer = done.stdout.decode("utf-8", "replace").strip()
            log(f"nvidia-smi: {done.returncode} {answer}")
            rows = re.findall(r"^(\d+(?:\.\d+)+)(?:, *(\d+\.\d+))?\s*$", answer, re.MULTILINE)
            if done.returncode == 0 and rows:
                return Driver(rows[0][0], max(float(row[1] or 0) for row in rows))
    return Driver("", 0.0)


def choose_torch(driver: "Driver | None", windows: bool = WINDOWS) -> "tuple[str, str]":
    """Return the torch build for a driver, and the reason.

    Minimum drivers: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html and
    table 2 of the CUDA 12.6 and 13.0 release notes (12.x: Linux 525.60.13, Windows 528.33; 13.x: 580, Linux
    580.65.06). Cards: RELEASE.md of PyTorch (12.6: compute capability 5.0 to 9.0; 13.0: from 7.5 on).
    """
    if driver is None:
        return "cpu", message("launcher.driver.none")
    if not driver.version:
        return "cpu", message("launcher.driver.no_answer")
    version = tuple(int(part) for part in driver.version.split("."))
    reason = message("launcher.driver.version", version=driver.version)
    card = driver.compute_capability
    if version >= ((580,) if windows else (580, 65, 6)) and not 0 < card < 7.5:
        return "cu130", reason
    if version >= ((528, 33) if windows else (525, 60, 13)) and (card == 0 or 5 <= card < 10):
        if 0 < card < 7.5:
            reason = message("launcher.driver.version_and_gpu", version=driver.version, capability=card)
        return "cu126", reason
    if 0 < card < 5:
        return "cpu", message("launcher.driver.old_gpu", capability=card)
    needed = "580" if card >= 10 else "528.33" if windows else "525.60.13"
    return "cpu", message("launcher.driver.too_old", version=driver.version, needed=needed)


class TorchSource(NamedTuple):
    """A source of a torch build: the version for pip, and its options."""

    label: str
    version: str
    options: "list[str]"
    warning: "str | None" = None


def torch_sources(tag: str, version: str, mirror: "Mirror | None", platform: str = sys.platform) -> "list[TorchSource]":
    """Sources of a torch build in order of preference. None replaces a CUDA build by a CPU build."""
    build, linux = f"{version}+{tag}", platform.startswith("linux")
    pypi = ["--index-url", mirror.pypi] if mirror else []
    configured = message("launcher.source.mirror" if mirror else "launcher.source.configured")
    sources = [TorchSource(configured, build, pypi)]
    if tag == (PYPI_LINUX_TAG if linux else "cpu"):
        sources.append(TorchSource(configured, version, pypi))
    if mirror and mirror.torch:
        place = mirror.torch.replace("{tag}", tag)
        sources.insert(0, TorchSource(place, build, [*pypi, mirror.torch_option, place]))
    sources.append(TorchSource(TORCH_INDEX + tag, build, [*pypi, "--extra-index-url", TORCH_INDEX + tag]))
    if tag == "cpu" and linux:
        sources.append(TorchSource(configured, version, pypi, message("launcher.source.large_build")))
    return sources
