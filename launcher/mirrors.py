"""Mirrors of PyPI and of torch's own index, and how fast they answer."""

import contextlib
import re
import time
import urllib.parse
from typing import NamedTuple

from launcher.downloads import open_url, use_settings
from launcher.failures import SetupError
from launcher.messages import emit, message, print_message
from launcher.uv import configured_sources

PYPI = "https://pypi.org/simple"
MEASURED_PACKAGE = "numpy"  # large enough, and everywhere


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
    if not re.match(r"(https?|file)://", pypi):
        raise SetupError(message("launcher.unknown_mirror", name=name, mirrors=", ".join(MIRRORS)), 2)
    return Mirror(pypi, torch if not torch or "{tag}" in torch else torch.rstrip("/") + "/{tag}")


def measure_mirrors() -> None:
    """Print bytes per second of each mirror, and of the source that is used without one."""
    sources = configured_sources()
    use_settings(sources.variables, sources.trusted_hosts)
    options = sources.options
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
