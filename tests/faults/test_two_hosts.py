"""Two machines: network namespaces with a cable between them (`network_cable.py`), each with torchrun's elastic agent.

Only the network is divided; both see the same files, as with a shared file system.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.faults.kills import find_ranks
from tests.core.trainer_process import ROOT, TINY, TrainerResult, environment, run, text_file
from tests.network_cable import DEVICE
from trainer_core import protocol
from trainer_core.messages import ExitCode

HOSTS = ("tdeck-a", "tdeck-b")
ADDRESSES = ("10.213.77.1", "10.213.77.2")
ARGUMENTS = ["train", *TINY, "--dropout", "0", "--sample-steps", "0", "--data", "文本 text.txt", "--compile", "off"]
TIMEOUT_S = 15


def _can_divide_the_network() -> bool:
    if sys.platform != "linux" or os.geteuid() or not shutil.which("ip") or not Path("/dev/net/tun").exists():
        return False
    if subprocess.run(["ip", "netns", "add", "tdeck-try"], capture_output=True, check=False).returncode:
        return False
    subprocess.run(["ip", "netns", "del", "tdeck-try"], capture_output=True, check=False)
    return True


pytestmark = [
    pytest.mark.skipif(not _can_divide_the_network(), reason="needs root, `ip` and /dev/net/tun"),
    pytest.mark.timeout(400),
]


def command(*words: str) -> None:
    completed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, f"{words}: {completed.stderr}"


@pytest.fixture
def cable() -> Iterator[subprocess.Popen[bytes]]:
    """The cable between two hosts."""
    remove_network()
    for host in HOSTS:
        command("ip", "netns", "add", host)
        command("ip", "-n", host, "link", "set", "lo", "up")
    arguments = [sys.executable, "-m", "tests.network_cable", *HOSTS]
    with subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for host, address in zip(HOSTS, ADDRESSES, strict=True):
            command("ip", "-n", host, "addr", "add", f"{address}/24", "dev", DEVICE)
            command("ip", "-n", host, "link", "set", DEVICE, "up")
        try:
            yield process
        finally:
            process.kill()
            remove_network()


def remove_network() -> None:
    for host in HOSTS:
        found = subprocess.run(
            ["ip", "netns", "pids", host], capture_output=True, text=True, check=False
        ).stdout.split()
        for pid in map(int, found):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", host], capture_output=True, check=False)


def disturb(cable: subprocess.Popen[bytes], delay_s: float, loss: float) -> None:
    """Delay all packets, and lose a share of them, in both directions."""
    assert cable.stdin is not None
    cable.stdin.write(f"{delay_s} {loss}\n".encode())


def start_host(
    home: Path, number: int, *arguments: str, nodes: str = "2", restarts: int = 0
) -> subprocess.Popen[bytes]:
    """Start torchrun on a host; the first one has the rendezvous."""
    variables = {
        "GLOO_SOCKET_IFNAME": DEVICE,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
    }
    launcher = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", nodes, "--nproc-per-node", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:29477", "--rdzv-id", "1",
        "--rdzv-conf", f"is_host={1 - number},last_call_timeout=3", "--local-addr", ADDRESSES[number],
        "--max-restarts", str(restarts), "-m", "trainer_core",
    ]  # fmt: skip
    options = ["--output", "json", "--collective-timeout-s", str(TIMEOUT_S), *arguments]
    return subprocess.Popen(
        ["ip", "netns", "exec", HOSTS[number], *launcher, *ARGUMENTS, *options],
        env=environment(home) | variables,
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=(home / f"host-{number}.jsonl").open("wb"),
        stderr=(home / f"host-{number}.log").open("wb"),
    )


def events(home: Path, number: int = 0) -> list[protocol.AnyEvent]:
    lines = (home / f"host-{number}.jsonl").read_bytes().splitlines(keepends=True)
    return [protocol.decode_event(line) for line in lines if line.endswith(b"\n")]


def wait_for_step(home: Path, step: int, timeout_s: float = 120) -> None:
    end = time.monotonic() + timeout_s
    while not any(isinstance(event, protocol.Step) and event.step >= step for event in events(home)):
        assert time.monotonic() < end, (home / "host-0.log").read_text(encoding="utf-8")
        time.sleep(0.1)


def kill_host(process: subprocess.Popen[bytes]) -> None:
    """Kill everything on a host at once, as a power failure does."""
    for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        with contextlib.suppress(psutil.Error):
            one.kill()
    process.wait()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "家 home"
    folder.mkdir()
    text_file(folder)
    return folder


def test_two_hosts_on_a_slow_and_lossy_link_equal_one_process(cable: subprocess.Popen[bytes], home: Path) -> None:
    single = run(home, *ARGUMENTS, "--max-steps", "6", "--run-dir", "single")
    assert single.code == 0, single.stderr
    disturb(cable, 0.02, 0.01)
    processes = [start_host(home, number, "--max-steps", "6", "--run-dir", "both") for number in (0, 1)]
    assert [process.wait(timeout=200) for process in processes] == [0, 0], (home / "host-0.log").read_text()
    result = TrainerResult(0, events(home), "")
    assert result.losses == pytest.approx(single.losses, rel=1e-5)
    assert not (home / "host-1.jsonl").read_bytes(), "only rank 0 emits events"


def test_a_broken_link_ends_the_run_with_a_named_failure_in_time(cable: subprocess.Popen[bytes], home: Path) -> None:
    processes = [
        start_host(home, number, "--max-steps", "100000", "--save-steps", "5", "--run-dir", "cut") for number in (0, 1)
    ]
    wait_for_step(home, 6)
    disturb(cable, 0.0, 1.0)
    since = time.monotonic()
    assert processes[0].wait(timeout=120) != 0
    assert time.monotonic() - since < TIMEOUT_S + 30
    (error,) = [event for event in events(home) if isinstance(event, protocol.Error)]
    assert error.code in ("ranks.timeout", "ranks.lost"), error
    assert error.params["number"] == 2, error
    end = since + 2 * TIMEOUT_S + 30
    while ranks := find_ranks(processes[1].pid):
        assert time.monotonic() < end, ranks
        time.sleep(0.2)
    kill_host(processes[1])  # the agent of torchrun waits for the other host for minutes
    resumed = run(home, "train", "--resume", "cut", "--max-steps", "8", "--nproc-per-node", "1")
    assert resumed.code == 0 or resumed.error.code == "resume.past_max_steps", resumed.stderr


def test_a_run_continues_on_one_host_when_the_other_is_gone(cable: subprocess.Popen[bytes], home: Path) -> None:
    arguments = ["--max-steps", "60", "--save-steps", "5", "--run-dir", "elastic"]
    processes = [start_host(home, number, *arguments, nodes="1:2", restarts=3) for number in (0, 1)]
    wait_for_step(home, 7)
    kill_host(processes[1])
    assert processes[0].wait(timeout=200) == ExitCode.FINISHED, (home / "host-0.log").read_text()
    hellos = [event for event in events(home) if isinstance(event, protocol.Hello)]
    assert len(hellos) == 2
    assert hellos[1].resumed_from_step
    assert hellos[1].resumed_from_step >= 5
    single = run(home, *ARGUMENTS, "--max-steps", "60", "--save-steps", "0", "--run-dir", "single")
    assert TrainerResult(0, events(home), "").losses == pytest.approx(single.losses, rel=1e-3)
