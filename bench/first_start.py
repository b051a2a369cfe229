"""Time from the first call of train_gpu.sh to the open window, without any package there, on a line of 100 Mbit/s.

    python -m bench.first_start [--rounds 3] [--mbit 100]

The packages come from an index on loopback in a network namespace, whose traffic `tc` limits. Linux, as root, with
iproute2, xvfb and xdotool; needs the network once, to collect the wheels.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from package_index import serve_packages  # noqa: E402

from launcher.uv import UV_VERSION  # noqa: E402

NAMESPACE = "traindeck-first-start"
DISPLAY = ":93"
FOLDER_NAME = "我的 模型 & co"


def collect_wheels(folder: Path) -> None:
    """Download the wheels of the window, of pip and of uv."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["tool"]["traindeck"]["window"], f"uv=={UV_VERSION}", "pip"]
    lock = folder / "pylock.toml"
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", "-c", str(ROOT / "constraints.txt")]
    command += ["--python", sys.executable, "--format", "pylock.toml", "-q", "-o", str(lock), "--no-config"]
    subprocess.run(command, input="\n".join(wanted), text=True, check=True)
    for package in tomllib.loads(lock.read_text(encoding="utf-8"))["packages"]:
        url = package["wheels"][0]["url"]
        target = folder / url.rpartition("/")[2]
        if not target.exists():
            urllib.request.urlretrieve(url, target)


@contextmanager
def slow_network(mbit: int) -> Iterator[None]:
    """This process, and what it starts, in a namespace whose loopback has this speed."""
    subprocess.run(["ip", "netns", "del", NAMESPACE], stderr=subprocess.DEVNULL, check=False)
    subprocess.run(["ip", "netns", "add", NAMESPACE], check=True)
    inside = ["ip", "netns", "exec", NAMESPACE]
    subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
    limit = ["rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms"]
    subprocess.run([*inside, "tc", "qdisc", "add", "dev", "lo", "root", "tbf", *limit], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=False)


def measure(wheels: Path, home: Path) -> tuple[float, int]:
    """Seconds until the window is visible, and bytes received, in a fresh folder and a fresh home."""
    project = home / FOLDER_NAME
    subprocess.run(["git", "clone", "-q", str(ROOT), str(project)], check=True)
    with serve_packages(wheels) as index:
        environment = {
            "HOME": str(home), "PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin", "LANG": "C.UTF-8",
            "DISPLAY": DISPLAY, "PIP_INDEX_URL": index.url, "NO_PROXY": "127.0.0.1",
        }  # fmt: skip
        started = time.monotonic()
        child = subprocess.Popen(
            [str(project / "train_gpu.sh")], env=environment, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            while not window_is_visible():
                if child.poll() is not None or time.monotonic() - started > 300:
                    raise SystemExit((child.stderr.read() if child.stderr else b"").decode())
                time.sleep(0.05)
            return time.monotonic() - started, sum(index.sent.values())
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


def window_is_visible() -> bool:
    command = ["xdotool", "search", "--onlyvisible", "--name", "Traindeck"]
    environment = {**os.environ, "DISPLAY": DISPLAY}
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mbit", type=int, default=100)
    parser.add_argument("--inside", metavar="WHEELS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        with tempfile.TemporaryDirectory() as home:
            seconds, received = measure(Path(options.inside), Path(home))
            print(seconds, received)
        return
    wheels = Path(tempfile.gettempdir()) / "traindeck-window-wheels"
    wheels.mkdir(exist_ok=True)
    collect_wheels(wheels)
    display = subprocess.Popen(["Xvfb", DISPLAY, "-screen", "0", "1366x768x24"], stderr=subprocess.DEVNULL)
    times, sizes = [], []
    try:
        with slow_network(options.mbit):
            for _ in range(options.rounds):
                command = ["ip", "netns", "exec", NAMESPACE, sys.executable, "-m", "bench.first_start"]
                command += ["--inside", str(wheels)]
                output = subprocess.check_output(command, text=True, cwd=ROOT).split()
                times.append(float(output[0]))
                sizes.append(int(output[1]))
                print(f"{times[-1]:.1f} s, {sizes[-1] / 1e6:.0f} MB", flush=True)
    finally:
        display.kill()
        display.wait()
    print(f"median {statistics.median(times):.1f} s; the line alone needs {sizes[0] * 8 / options.mbit / 1e6:.1f} s")


if __name__ == "__main__":
    if not shutil.which("tc") or not shutil.which("xdotool"):
        raise SystemExit("This needs iproute2 and xdotool.")
    main()
