"""Which build of torch, by the driver; and where it can be had."""

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import NamedTuple

from launcher.failures import SetupError
from launcher.places import WINDOWS
from launcher.words import log

# The builds of torch 2.13; there is no cu128 any more (https://github.com/pytorch/pytorch/issues/178665).
TORCH_TAGS = ("cpu", "cu126", "cu130", "cu132")
TORCH_INDEX = "https://download.pytorch.org/whl/"
PYPI_LINUX_TAG = "cu130"  # what PyPI's plain Linux wheel of torch 2.13 is built with; on Windows it is CPU-only


class Mirror(NamedTuple):
    """Where to fetch from instead of PyPI and of torch's own index."""

    pypi: str
    torch: str  # {tag} stands for cpu, cu130 ...; empty: no torch wheels there
    torch_option: str = "--extra-index-url"


NJU_TORCH = "https://mirror.nju.edu.cn/pytorch/whl/{tag}"
MIRRORS = {
    "tsinghua": Mirror("https://pypi.tuna.tsinghua.edu.cn/simple", NJU_TORCH),  # has no torch wheels itself
    "nju": Mirror("https://mirror.nju.edu.cn/pypi/web/simple", NJU_TORCH),
    # One index for all builds: https://github.com/sjtug/mirror-requests/issues/421
    "sjtu": Mirror("https://mirror.sjtu.edu.cn/pypi/web/simple", "https://mirror.sjtu.edu.cn/pytorch-wheels"),
    # Flat pages of wheels, which pip reads only as find-links.
    "aliyun": Mirror(
        "https://mirrors.aliyun.com/pypi/simple", "https://mirrors.aliyun.com/pytorch-wheels/{tag}/", "--find-links"
    ),
}


class Driver(NamedTuple):
    """What the NVIDIA driver says; version is empty when it is there but does not answer."""

    version: str
    compute_capability: float  # of the best card; 0 when unknown


def nvidia_smi() -> str:
    """The path of nvidia-smi, or nothing. Windows has it in System32, which a trimmed PATH may lack."""
    spots = [str(Path(os.environ.get("WINDIR", "C:\\Windows")) / "System32/nvidia-smi.exe")] if WINDOWS else []
    spots += ["/usr/lib/wsl/lib/nvidia-smi"]
    return shutil.which("nvidia-smi") or next((spot for spot in spots if Path(spot).exists()), "")


def driver_present() -> bool:
    """Whether an NVIDIA driver seems to be there: no process started, for every start asks this."""
    return bool(nvidia_smi()) or Path("/dev/nvidiactl").exists()


def ask_driver() -> "Driver | None":
    """Driver version and best compute capability through nvidia-smi, else the version through NVML."""
    if not driver_present():
        return None
    for fields in ("driver_version,compute_cap", "driver_version"):  # old drivers do not know compute_cap
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                [nvidia_smi() or "nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader"],
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                timeout=30,
            )
            answer = done.stdout.decode("utf-8", "replace").strip()
            log(f"nvidia-smi: {done.returncode} {answer}")
            rows = re.findall(r"^(\d+(?:\.\d+)+)(?:, *(\d+\.\d+))?\s*$", answer, re.MULTILINE)
            if done.returncode == 0 and rows:
                return Driver(rows[0][0], max(float(row[1] or 0) for row in rows))
    return Driver(nvml_version(), 0.0)


def nvml_version() -> str:
    """The driver's version from its own library, or nothing."""
    try:
        nvml = ctypes.CDLL("nvml.dll" if WINDOWS else "libnvidia-ml.so.1")
        text, count = ctypes.create_string_buffer(96), ctypes.c_uint(0)
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) or not count.value:
            return ""
        return "" if nvml.nvmlSystemGetDriverVersion(text, 96) else text.value.decode("ascii", "replace")
    except (OSError, AttributeError):
        return ""


def choose_torch(driver: "Driver | None", windows: bool = WINDOWS) -> "tuple[str, str]":
    """The torch build for a driver, and the reason in words.

    Minimum drivers: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html and
    table 2 of the CUDA 12.6 and 13.0 release notes (12.x: Linux 525.60.13, Windows 528.33; 13.x: 580, Linux
    580.65.06). Cards: RELEASE.md of PyTorch (12.6: compute capability 5.0 to 9.0; 13.0: from 7.5 on).
    """
    if driver is None:
        return "cpu", "no NVIDIA driver found"
    if not driver.version:
        return "cpu", "WARNING: an NVIDIA driver is installed but does not answer; try nvidia-smi"
    version = tuple(int(part) for part in driver.version.split("."))
    said = f"driver {driver.version}"
    card = driver.compute_capability
    if version >= ((580,) if windows else (580, 65, 6)) and not 0 < card < 7.5:
        return "cu130", said
    if version >= ((528, 33) if windows else (525, 60, 13)) and (card == 0 or 5 <= card < 10):
        return "cu126", said + (f", compute capability {card}" if 0 < card < 7.5 else "")
    if 0 < card < 5:
        return "cpu", f"WARNING: PyTorch no longer supports this GPU (compute capability {card})"
    needed = "580" if card >= 10 else "528.33" if windows else "525.60.13"
    return "cpu", f"WARNING: {said} is too old for this GPU and PyTorch; install {needed} or newer, then start again"


class Source(NamedTuple):
    """One way to get a torch build: the version to ask pip for, and pip's options for it."""

    label: str
    version: str
    options: "list[str]"
    warning: str = ""


def find_mirror(name: str) -> "Mirror | None":
    """A mirror by its name, or one's own as PYPI_URL[,TORCH_URL]."""
    if not name or name == "none":
        return None
    if name in MIRRORS:
        return MIRRORS[name]
    pypi, _, torch = name.partition(",")
    if not re.match(r"(https?|file)://", pypi):
        raise SetupError(f"Unknown mirror {name!r}: use {', '.join(MIRRORS)}, none, or URL[,TORCH_URL]", 2)
    return Mirror(pypi, torch if not torch or "{tag}" in torch else torch.rstrip("/") + "/{tag}")


def torch_sources(tag: str, version: str, mirror: "Mirror | None", platform: str = sys.platform) -> "list[Source]":
    """Where to look for a torch build, in this order; nothing that would swap CUDA for CPU is in the list."""
    build, linux = f"{version}+{tag}", platform.startswith("linux")
    pypi = ["--index-url", mirror.pypi] if mirror else []
    configured = "the mirror" if mirror else "the sources pip is configured with"
    sources = [Source(configured, build, pypi)]
    if tag == (PYPI_LINUX_TAG if linux else "cpu"):
        sources.append(Source(configured, version, pypi))
    if mirror and mirror.torch:
        place = mirror.torch.replace("{tag}", tag)
        sources.insert(0, Source(place, build, [*pypi, mirror.torch_option, place]))
    sources.append(Source(TORCH_INDEX + tag, build, [*pypi, "--extra-index-url", TORCH_INDEX + tag]))
    if tag == "cpu" and linux:
        big = "No CPU-only build was found; taking the CUDA build, which works too but is several GB."
        sources.append(Source(configured, version, pypi, big))
    return sources
