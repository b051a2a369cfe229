"""The torch build for the driver and GPU, and the sources of packages: mirrors, torch's own index."""

import contextlib
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
from subprocess import DEVNULL, PIPE, STDOUT
from typing import NamedTuple

from launcher.downloads import open_url
from launcher.messages import SetupError, emit, log, message, print_message
from launcher.places import WINDOWS
from launcher.uv import configured_sources

PYPI = "https://pypi.org/simple"
MEASURED_PACKAGE = "numpy"  # large enough, and everywhere
# The builds of torch 2.13; there is no cu128 any more (https://github.com/pytorch/pytorch/issues/178665).
TORCH_TAGS = ("cpu", "cu126", "cu130", "cu132")
# Minimum drivers on Windows and Linux (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
# and table 2 of the CUDA release notes) and compute capabilities, from and below (RELEASE.md of PyTorch).
CUDA_BUILDS = (("cu130", (580,), (580, 65, 6), 7.5, 99), ("cu126", (528, 33), (525, 60, 13), 5, 10))
TORCH_INDEX = "https://download.pytorch.org/whl/"
PYPI_LINUX_TAG = "cu130"  # what PyPI's plain Linux wheel of torch 2.13 is built with; on Windows it is CPU-only


# --- mirrors -------------------------------------------------------------------------------------------


class Mirror(NamedTuple):
    """Replaces PyPI and torch's own index."""

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


def find_mirror(name: str) -> "Mirror | None":
    """A mirror by name, or PYPI_URL[,TORCH_URL]."""
    if not name or name == "none":
        return None
    if name in MIRRORS:
        return MIRRORS[name]
    pypi, _, torch = name.partition(",")
    if not re.match(r"(https?|file)://\S+$", pypi) or re.search(r"\s", torch):
        raise SetupError(message("launcher.unknown_mirror", name=name, mirrors=", ".join(MIRRORS)), 2)
    return Mirror(pypi, torch if not torch or "{tag}" in torch else torch.rstrip("/") + "/{tag}")


def measure_mirrors() -> None:
    """Print bytes per second of each mirror, and of the source that is used without one."""
    options = configured_sources()
    configured = options[options.index("--default-index") + 1] if "--default-index" in options else PYPI
    for name, index in [("", configured), *((name, mirror.pypi) for name, mirror in MIRRORS.items())]:
        label, rate = name or message("launcher.source.configured"), measure_rate(index)
        emit("mirror", name=name, label=label, rate=round(rate))
        print_message(message("launcher.mirror_rate", name=label, rate=rate / 1e6))


def measure_rate(index: str, seconds: float = 4.0) -> float:
    """Bytes per second of a wheel in an index (PEP 503); 0 if it does not answer."""
    page, got = f"{index.rstrip('/')}/{MEASURED_PACKAGE}/", 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open_url(page, {}) as answer:
            link = re.findall(r'href="([^"]+\.whl)', answer.read().decode("utf-8", "replace"))[-1]
        started = time.monotonic()
        with open_url(urllib.parse.urljoin(page, link), {}) as answer:
            while time.monotonic() - started < seconds:
                chunk = answer.read(1 << 16)
                if not chunk:
                    break
                got += len(chunk)
        return got / max(time.monotonic() - started, 0.001)
    return 0.0


# --- torch ---------------------------------------------------------------------------------------------


class Driver(NamedTuple):
    """The NVIDIA driver. `version` is empty if it is installed but does not respond."""

    version: str
    compute_capability: float  # of the newest GPU; 0: unknown


def has_driver() -> bool:
    """Whether an NVIDIA driver is installed. Fast: called at every start."""
    return shutil.which("nvidia-smi") is not None


def query_driver() -> "Driver | None":
    """Driver version and highest compute capability from nvidia-smi, or None without it. Takes up to seconds."""
    if not has_driver():
        return None
    for fields in ("driver_version,compute_cap", "driver_version"):  # old drivers lack compute_cap
        command = ["nvidia-smi", "--query-gpu=" + fields, "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, timeout=30)
            answer = done.stdout.decode("utf-8", "replace").strip()
            log(f"nvidia-smi: {done.returncode} {answer}")
            rows = re.findall(r"^(\d+(?:\.\d+)+)(?:, *(\d+\.\d+))?\s*$", answer, re.MULTILINE)
            if done.returncode == 0 and rows:
                return Driver(rows[0][0], max(float(row[1] or 0) for row in rows))
    return Driver("", 0.0)


def choose_torch(driver: "Driver | None", windows: bool = WINDOWS) -> "tuple[str, str]":
    """Return the torch build for a driver, and the reason."""
    if driver is None:
        return "cpu", message("launcher.driver.none")
    if not driver.version:
        return "cpu", message("launcher.driver.no_answer")
    version, card = tuple(int(part) for part in driver.version.split(".")), driver.compute_capability
    for tag, on_windows, on_linux, oldest, newer in CUDA_BUILDS:
        if version >= (on_windows if windows else on_linux) and (card == 0 or oldest <= card < newer):
            reason = message("launcher.driver.version", version=driver.version)
            return tag, reason + (message("launcher.driver.gpu", capability=card) if card else "")
    if 0 < card < 5:
        return "cpu", message("launcher.driver.old_gpu", capability=card)
    needed = "580" if card >= 10 else "528.33" if windows else "525.60.13"
    return "cpu", message("launcher.driver.too_old", version=driver.version, needed=needed)


class TorchSource(NamedTuple):
    """A source of a torch build: the version for pip, and its options."""

    label: str
    version: str
    options: "list[str]"


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
    return sources
