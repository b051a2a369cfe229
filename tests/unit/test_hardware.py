"""Hardware probe and monitor: with and without a GPU, and with a GPU that supports few queries."""

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

from tests.unit.fake_nvml import GIB, EnergyNvml, FakeNvml
from tests.waiting import wait_until
from trainer_core import protocol
from trainer_core.system.hardware import free_vram, probe
from trainer_core.system.hardware_monitor import HardwareMonitor, TorchMemoryQuery
from trainer_core.system.memory import system_memory


def sample(
    tmp_path: Path, count: int = 1, nvml: FakeNvml | None = None, memory: TorchMemoryQuery = lambda: None
) -> list[protocol.Hardware]:
    samples: list[protocol.Hardware] = []
    monitor = HardwareMonitor(samples.append, 0.01, tmp_path, memory, library=nvml or FakeNvml())
    monitor.start()
    wait_until(lambda: len(samples) >= count)
    monitor.stop()
    return samples


# --- probe ---------------------------------------------------------------------------------------------


def test_probe_describes_the_gpus() -> None:
    nvml = FakeNvml()
    machine = probe(nvml)
    assert (machine.driver_version, machine.max_cuda_version, machine.no_gpu_reason) == ("580.65.06", (13, 0), None)
    first, second = machine.gpus
    assert (first.name, first.vram_total, first.compute_capability) == ("NVIDIA RTX A6000", 48 * GIB, (8, 6))
    assert (second.name, second.vram_total, second.compute_capability) == ("Old Card", None, None)
    assert (first.bf16, second.bf16) == (True, None)
    assert nvml.sessions == 0


def test_free_vram_finds_a_gpu_by_the_uuid_of_torch() -> None:
    free = 36 * GIB - GIB // 2  # without the CUDA context
    assert free_vram("0a0b1c2d-0000", FakeNvml()) == free
    assert free_vram("GPU-0a0b1c2d-0000", FakeNvml()) == free
    assert free_vram("1a0b1c2d-0000", FakeNvml()) is None
    assert free_vram("another", FakeNvml()) is None
    assert free_vram("0a0b1c2d-0000", FakeNvml(init_error=9)) is None


def test_the_cuda_version_of_the_driver_is_decoded() -> None:
    nvml = FakeNvml()
    nvml.cuda = 12080
    assert probe(nvml).max_cuda_version == (12, 8)


@pytest.mark.parametrize(
    ("error", "reason"), [(9, "driver_not_loaded"), (12, "no_library"), (18, "driver_mismatch"), (999, "nvml_error")]
)
def test_probe_reports_why_nvml_failed(error: int, reason: str) -> None:
    machine = probe(FakeNvml(init_error=error))
    assert (machine.gpus, machine.no_gpu_reason, machine.driver_version) == ((), reason, None)
    assert machine.no_gpu_detail


def test_a_driver_without_a_gpu_is_reported_as_no_devices() -> None:
    machine = probe(FakeNvml(gpus=0))
    assert (machine.no_gpu_reason, machine.driver_version) == ("no_devices", "580.65.06")


def test_probe_reports_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert probe().no_gpu_reason == "no_package"


def test_this_machine_can_be_probed() -> None:
    machine = probe()
    assert bool(machine.gpus) == (machine.no_gpu_reason is None)
    assert machine.ram_total >= machine.ram_available > 0
    assert machine.cpu_name
    assert machine.cpu_cores >= 1
    assert machine.cpu_threads >= 1


# --- monitor -------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no CPU affinity")
def test_usable_threads_respect_the_processor_affinity() -> None:
    set_affinity = {
        "win32": "from ctypes import *; WinDLL('kernel32').SetProcessAffinityMask(c_void_p(-1), c_size_t(1))",
        "linux": "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])",
    }[sys.platform]
    script = "from trainer_core.system import hardware as h; print(h.usable_threads(), h.probe().cpu_threads)"
    assert subprocess.check_output([sys.executable, "-c", f"{set_affinity}; {script}"]).split() == [b"1", b"1"]


def test_values_that_a_gpu_does_not_report_are_none(tmp_path: Path) -> None:
    gpu, limited = sample(tmp_path, nvml=FakeNvml(throttle=0x4 | 0x20 | 0x1))[0].gpus
    assert (gpu.utilization, gpu.vram_used, gpu.vram_total) == (0.87, 12 * GIB, 48 * GIB)
    assert (gpu.power_w, gpu.power_limit_w, gpu.temperature_c, gpu.clock_mhz) == (250.5, 300.0, 71.0, 1800)
    assert gpu.throttle == ["power", "thermal"]
    assert limited == protocol.Gpu(index=1, name="Old Card", vram_used=GIB)


def test_the_host_is_sampled_without_a_gpu(tmp_path: Path) -> None:
    (event,) = sample(tmp_path, nvml=FakeNvml(init_error=12))[:1]
    assert event.gpus == []
    assert 0 < event.host.ram_used < event.host.ram_total == system_memory().total
    assert event.host.rss > 10 * 2**20
    assert 0.0 <= event.host.cpu <= 1.0
    assert event.host.disk_free > 0


def test_this_machine_can_be_sampled(tmp_path: Path) -> None:
    samples: list[protocol.Hardware] = []
    monitor = HardwareMonitor(samples.append, 0.01, tmp_path / "new")
    monitor.start()
    wait_until(lambda: len(samples) >= 3)
    monitor.stop()
    assert protocol.decode_event(protocol.encode(samples[-1])) == samples[-1]


def test_child_processes_count_in_rss(tmp_path: Path) -> None:
    alone = sample(tmp_path)[0].host.rss
    code = "x = bytearray(50_000_000); x[:] = b'1' * len(x); print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert sample(tmp_path)[0].host.rss > alone + 45_000_000
        child.communicate(b"\n")


def test_cpu_utilization_is_sampled(tmp_path: Path) -> None:
    try:
        psutil.cpu_times()
    except OSError:
        pytest.skip("Wine reports no processor times")
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(1000))

    worker = threading.Thread(target=spin)
    worker.start()
    try:
        samples = sample(tmp_path, count=20)
        assert max(event.host.cpu for event in samples) > 0.5 / (os.cpu_count() or 1)
    finally:
        stop.set()
        worker.join()


def test_a_system_without_processor_times_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(1, "Invalid function")

    monkeypatch.setattr(psutil, "cpu_times", fail)
    assert sample(tmp_path)[0].host.cpu == 0.0


@pytest.mark.parametrize(("uuid", "owner"), [("0a0b1c2d-0000", [0]), ("GPU-1A0B1C2D-0000", [1]), ("", [])])
def test_the_memory_of_torch_is_assigned_to_its_gpu(tmp_path: Path, uuid: str, owner: list[int]) -> None:
    gpus = sample(tmp_path, memory=lambda: (uuid, 5, 7))[0].gpus
    assert [gpu.index for gpu in gpus if gpu.torch_allocated == 5 and gpu.torch_reserved == 7] == owner


def measure_energy(tmp_path: Path, nvml: EnergyNvml, other_uuids: list[str]) -> float | None:
    """Return the measured energy after GPU 0 has used 100 J and GPU 1 200 J since the first sample."""
    samples: list[protocol.Hardware] = []
    monitor = HardwareMonitor(
        samples.append, 0.01, tmp_path, lambda: ("0a0b1c2d-0000", 5, 7), library=nvml, other_gpu_uuids=other_uuids
    )
    assert monitor.energy_j() is None
    monitor.start()
    wait_until(lambda: len(samples) >= 1)
    nvml.energy_mj += 100_000
    try:
        return monitor.energy_j()
    finally:
        monitor.stop()


def test_energy_is_the_sum_over_the_gpus_of_all_processes(tmp_path: Path) -> None:
    assert measure_energy(tmp_path, EnergyNvml(), []) == 100.0
    assert measure_energy(tmp_path, EnergyNvml(), ["1a0b1c2d-0000"]) == 100.0 + 200.0


@pytest.mark.parametrize("other", ["1a0b1c2d-0000", "unknown"], ids=["no counter", "unknown GPU"])
def test_energy_is_unknown_if_one_gpu_does_not_report_it(tmp_path: Path, other: str) -> None:
    assert measure_energy(tmp_path, EnergyNvml(without=1), [other]) is None


def test_the_monitor_survives_a_failing_callback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[protocol.Hardware] = []

    def fail(event: protocol.Hardware) -> None:
        calls.append(event)
        raise RuntimeError("callback failed")

    monitor = HardwareMonitor(fail, 0.01, tmp_path, library=FakeNvml())
    monitor.start()
    wait_until(lambda: len(calls) >= 3)
    monitor.stop()
    assert "callback failed" in caplog.text


def test_stop_ends_the_thread_and_shuts_nvml_down(tmp_path: Path) -> None:
    nvml = FakeNvml()
    samples: list[protocol.Hardware] = []
    monitor = HardwareMonitor(samples.append, 3600.0, tmp_path, library=nvml)
    monitor.start()
    wait_until(lambda: len(samples) == 1)
    assert nvml.sessions == 1
    start = time.monotonic()
    monitor.stop()
    assert time.monotonic() - start < 1.0
    assert nvml.sessions == 0
    assert "hardware" not in [thread.name for thread in threading.enumerate()]


def test_a_monitor_that_was_not_started_can_be_stopped(tmp_path: Path) -> None:
    samples: list[protocol.Hardware] = []
    monitor = HardwareMonitor(samples.append, 1.0, tmp_path)
    monitor.stop()
    assert (samples, "hardware" in [thread.name for thread in threading.enumerate()]) == ([], False)


def test_the_interval_can_be_changed(tmp_path: Path) -> None:
    samples: list[protocol.Hardware] = []
    monitor = HardwareMonitor(samples.append, 3600.0, tmp_path, library=FakeNvml())
    monitor.start()
    wait_until(lambda: len(samples) == 1)
    monitor.set_interval(0.01)
    wait_until(lambda: len(samples) >= 5)
    monitor.stop()


def test_sampling_the_host_is_fast(tmp_path: Path) -> None:
    monitor = HardwareMonitor(lambda _: None, 1.0, tmp_path, library=FakeNvml())
    start = time.perf_counter()
    for _ in range(20):
        monitor.sample_host()
    assert (time.perf_counter() - start) / 20 < 0.02


@pytest.mark.parametrize(
    ("sensors_battery", "on_battery"),
    [
        (lambda: None, None),  # a desktop
        (lambda: SimpleNamespace(percent=80, secsleft=3600, power_plugged=False), True),
        (lambda: SimpleNamespace(percent=80, secsleft=-2, power_plugged=True), False),
        (lambda: SimpleNamespace(percent=80, secsleft=-1, power_plugged=None), None),
        (lambda: 1 / 0, None),  # broken firmware
        (None, None),  # no such function on this system
    ],
)
def test_battery_power_is_detected(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sensors_battery: Callable[[], object] | None,
    on_battery: bool | None,
) -> None:
    if sensors_battery is None:
        monkeypatch.delattr(psutil, "sensors_battery", raising=False)
    else:
        monkeypatch.setattr(psutil, "sensors_battery", sensors_battery, raising=False)
    assert HardwareMonitor(lambda _: None, 1.0, tmp_path).sample_host().on_battery is on_battery
