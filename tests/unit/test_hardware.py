"""The machine is described and sampled, with a GPU, without one, and with one that does not answer."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.unit.fake_nvml import GIB, FakeNvml, refuse
from trainer_core import protocol
from trainer_core.system.hardware import free_vram, probe
from trainer_core.system.hardware_monitor import HardwareMonitor, TorchMemoryQuery
from trainer_core.system.memory import system_memory


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def looks(
    tmp_path: Path, count: int = 1, nvml: FakeNvml | None = None, memory: TorchMemoryQuery | None = None
) -> list[protocol.Hardware]:
    seen: list[protocol.Hardware] = []
    sampler = HardwareMonitor(seen.append, 0.01, tmp_path, memory, library=nvml or FakeNvml())
    sampler.start()
    wait_for(lambda: len(seen) >= count)
    sampler.stop()
    return seen


# --- what the machine has ------------------------------------------------------------------------------


def test_the_gpus_of_the_machine_are_described() -> None:
    nvml = FakeNvml()
    machine = probe(nvml)
    assert (machine.driver_version, machine.max_cuda_version, machine.no_gpu_reason) == ("580.65.06", (13, 0), None)
    first, second = machine.gpus
    assert (first.name, first.vram_total, first.compute_capability) == ("NVIDIA RTX A6000", 48 * GIB, (8, 6))
    assert (second.name, second.vram_total, second.compute_capability) == ("Old Card", None, None)
    assert (first.bf16, second.bf16) == (True, None)
    assert nvml.open == 0


def test_the_free_memory_of_a_gpu_is_found_by_the_name_that_torch_has_for_it() -> None:
    free = 36 * GIB - GIB // 2  # that CUDA itself takes for a process
    assert free_vram("0a0b1c2d-0000", FakeNvml()) == free
    assert free_vram("GPU-0a0b1c2d-0000", FakeNvml()) == free
    assert free_vram("1a0b1c2d-0000", FakeNvml()) is None
    assert free_vram("another", FakeNvml()) is None
    assert free_vram("0a0b1c2d-0000", FakeNvml(broken=9)) is None


def test_a_driver_of_cuda_12_8_is_told_as_12_8() -> None:
    nvml = FakeNvml()
    nvml.cuda = 12080
    assert probe(nvml).max_cuda_version == (12, 8)


@pytest.mark.parametrize(
    ("error", "reason"), [(9, "driver_not_loaded"), (12, "no_library"), (18, "driver_mismatch"), (999, "nvml_error")]
)
def test_without_nvml_the_reason_is_told(error: int, reason: str) -> None:
    machine = probe(FakeNvml(broken=error))
    assert (machine.gpus, machine.no_gpu_reason, machine.driver_version) == ((), reason, None)
    assert machine.no_gpu_detail


def test_a_driver_without_a_card_is_told_apart_from_no_driver() -> None:
    machine = probe(FakeNvml(cards=0))
    assert (machine.no_gpu_reason, machine.driver_version) == ("no_devices", "580.65.06")


def test_a_missing_package_is_a_reason_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert probe().no_gpu_reason == "no_package"


def test_this_machine_can_be_described_whatever_it_has() -> None:
    machine = probe()
    assert bool(machine.gpus) == (machine.no_gpu_reason is None)
    assert machine.ram_total >= machine.ram_available > 0
    assert machine.cpu_name
    assert machine.cpu_cores >= 1
    assert machine.cpu_threads >= 1


# --- how it is doing -----------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS lets no program choose its processors")
def test_processors_that_this_program_may_not_use_are_not_counted() -> None:
    """As `taskset` and Windows' `start /affinity` start it."""
    one = {
        "win32": "from ctypes import *; WinDLL('kernel32').SetProcessAffinityMask(c_void_p(-1), c_size_t(1))",
        "linux": "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])",
    }[sys.platform]
    look = "from trainer_core.system import hardware as h; print(h.usable_threads(), h.probe().cpu_threads)"
    assert subprocess.check_output([sys.executable, "-c", f"{one}; {look}"]).split() == [b"1", b"1"]


def test_a_look_tells_what_the_card_tells_and_none_for_the_rest(tmp_path: Path) -> None:
    gpu, silent = looks(tmp_path, nvml=FakeNvml(throttle=0x4 | 0x20 | 0x1))[0].gpus
    assert (gpu.utilization, gpu.vram_used, gpu.vram_total) == (0.87, 12 * GIB, 48 * GIB)
    assert (gpu.power_w, gpu.power_limit_w, gpu.temperature_c, gpu.clock_mhz) == (250.5, 300.0, 71.0, 1800)
    assert gpu.throttle == ["power", "thermal"]
    assert silent == protocol.Gpu(index=1, name="Old Card", vram_used=GIB)


def test_a_look_without_a_gpu_still_tells_of_the_host(tmp_path: Path) -> None:
    (look,) = looks(tmp_path, nvml=FakeNvml(broken=12))[:1]
    assert look.gpus == []
    assert 0 < look.host.ram_used < look.host.ram_total == system_memory().total
    assert look.host.rss > 10 * 2**20
    assert 0.0 <= look.host.cpu <= 1.0
    assert look.host.disk_free > 0


def test_the_real_machine_can_be_sampled(tmp_path: Path) -> None:
    seen: list[protocol.Hardware] = []
    sampler = HardwareMonitor(seen.append, 0.01, tmp_path / "not there yet")
    sampler.start()
    wait_for(lambda: len(seen) >= 3)
    sampler.stop()
    assert protocol.decode_event(protocol.encode(seen[-1])) == seen[-1]


def test_loader_processes_count_as_memory_of_the_run(tmp_path: Path) -> None:
    alone = looks(tmp_path)[0].host.rss
    code = "x = bytearray(50_000_000); x[:] = b'1' * len(x); print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert looks(tmp_path)[0].host.rss > alone + 45_000_000
        child.communicate(b"\n")


def test_a_busy_processor_shows(tmp_path: Path) -> None:
    try:
        psutil.cpu_times()
    except OSError:
        pytest.skip("this system (Wine) does not tell its processor time")
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(1000))

    worker = threading.Thread(target=spin)
    worker.start()
    try:
        assert looks(tmp_path)[0].host.cpu > 0.5 / (os.cpu_count() or 1)
    finally:
        stop.set()
        worker.join()


def test_a_system_that_does_not_tell_its_processor_time_is_still_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise OSError(1, "Invalid function")

    monkeypatch.setattr(psutil, "cpu_times", refuse)
    assert looks(tmp_path)[0].host.cpu == 0.0


@pytest.mark.parametrize(("uuid", "owner"), [("0a0b1c2d-0000", [0]), ("GPU-1A0B1C2D-0000", [1]), ("", [])])
def test_what_torch_holds_is_shown_at_the_gpu_that_torch_means(tmp_path: Path, uuid: str, owner: list[int]) -> None:
    gpus = looks(tmp_path, memory=lambda: (uuid, 5, 7))[0].gpus
    assert [gpu.index for gpu in gpus if gpu.torch_allocated == 5 and gpu.torch_reserved == 7] == owner


class Metered(FakeNvml):
    """Three cards that count their energy; `without` does not."""

    def __init__(self, without: int | None = None) -> None:
        super().__init__(cards=3)
        self.without, self.counted = without, 5_000_000  # mJ

    def nvmlDeviceGetTotalEnergyConsumption(self, card: int) -> int:
        return refuse() if card == self.without else self.counted * (card + 1)


def energy_of(tmp_path: Path, nvml: Metered, beside: list[str]) -> float | None:
    """What is told when card 0 has counted 100 J since the first sample, and card 1 200 J."""
    seen: list[protocol.Hardware] = []
    sampler = HardwareMonitor(
        seen.append, 0.01, tmp_path, lambda: ("0a0b1c2d-0000", 5, 7), library=nvml, other_gpu_uuids=beside
    )
    assert sampler.energy_j() is None
    sampler.start()
    wait_for(lambda: len(seen) >= 1)
    nvml.counted += 100_000
    try:
        return sampler.energy_j()
    finally:
        sampler.stop()


def test_the_energy_of_one_process_is_that_of_its_card(tmp_path: Path) -> None:
    assert energy_of(tmp_path, Metered(), []) == 100.0


def test_the_energy_of_several_processes_is_that_of_all_their_cards(tmp_path: Path) -> None:
    assert energy_of(tmp_path, Metered(), ["1a0b1c2d-0000"]) == 100.0 + 200.0


@pytest.mark.parametrize("beside", ["1a0b1c2d-0000", "another"], ids=["counts nothing", "not to be seen"])
def test_without_the_energy_of_one_card_there_is_none_of_all(tmp_path: Path, beside: str) -> None:
    assert energy_of(tmp_path, Metered(without=1), [beside]) is None


def test_the_sampler_outlives_a_failing_callback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[protocol.Hardware] = []

    def fail(look: protocol.Hardware) -> None:
        calls.append(look)
        raise RuntimeError("the reader is gone")

    sampler = HardwareMonitor(fail, 0.01, tmp_path, library=FakeNvml())
    sampler.start()
    wait_for(lambda: len(calls) >= 3)
    sampler.stop()
    assert "the reader is gone" in caplog.text


def test_stopping_ends_the_thread_and_closes_nvml(tmp_path: Path) -> None:
    nvml = FakeNvml()
    seen: list[protocol.Hardware] = []
    sampler = HardwareMonitor(seen.append, 3600.0, tmp_path, library=nvml)
    sampler.start()
    wait_for(lambda: len(seen) == 1)
    assert nvml.open == 1
    start = time.monotonic()
    sampler.stop()
    assert time.monotonic() - start < 1.0
    assert nvml.open == 0
    assert "hardware" not in [thread.name for thread in threading.enumerate()]


def test_a_sampler_that_was_never_started_can_be_stopped(tmp_path: Path) -> None:
    seen: list[protocol.Hardware] = []
    sampler = HardwareMonitor(seen.append, 1.0, tmp_path)
    sampler.stop()
    assert (seen, "hardware" in [thread.name for thread in threading.enumerate()]) == ([], False)


def test_the_interval_changes_while_running(tmp_path: Path) -> None:
    seen: list[protocol.Hardware] = []
    sampler = HardwareMonitor(seen.append, 3600.0, tmp_path, library=FakeNvml())
    sampler.start()
    wait_for(lambda: len(seen) == 1)
    sampler.set_interval(0.01)
    wait_for(lambda: len(seen) >= 5)
    sampler.stop()


def test_a_look_is_cheap(tmp_path: Path) -> None:
    """At one look every two seconds, 20 ms would be 1 % of a core."""
    seen = looks(tmp_path, count=30)
    assert len(seen) >= 30
    sampler = HardwareMonitor(lambda _: None, 1.0, tmp_path, library=FakeNvml())
    start = time.perf_counter()
    for _ in range(20):
        sampler._host.sample()
    assert (time.perf_counter() - start) / 20 < 0.02


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda: None, None),  # a desktop
        (lambda: SimpleNamespace(percent=80, secsleft=3600, power_plugged=False), True),
        (lambda: SimpleNamespace(percent=80, secsleft=-2, power_plugged=True), False),
        (lambda: SimpleNamespace(percent=80, secsleft=-1, power_plugged=None), None),
        (lambda: 1 / 0, None),  # firmware that is broken
        (None, None),  # a system for which psutil has no such function
    ],
)
def test_a_laptop_on_its_battery_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[], object] | None, told: bool | None
) -> None:
    if answer is None:
        monkeypatch.delattr(psutil, "sensors_battery", raising=False)
    else:
        monkeypatch.setattr(psutil, "sensors_battery", answer, raising=False)
    assert HardwareMonitor(lambda _: None, 1.0, tmp_path)._host.sample().on_battery is told
