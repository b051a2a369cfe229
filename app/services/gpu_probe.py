"""What this machine has, asked without torch: GPUs through NVML, memory and cores through psutil."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field

import psutil
from PySide6.QtCore import QObject, Signal


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU. Bytes; None where the driver does not tell."""

    index: int
    name: str
    vram_total: int | None
    vram_used: int | None


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The machine. `no_gpu` is the driver's own reason why `gpus` is empty; empty if there simply is none."""

    gpus: list[GpuFacts] = field(default_factory=list)
    driver: str = ""
    no_gpu: str = ""
    ram_total: int = 0
    ram_available: int = 0
    cores: int = 1  # physical
    threads: int = 1  # logical


def probe() -> MachineFacts:
    """Look now. Usually some ms; a driver that sleeps can take seconds, so prefer `GpuProbe`."""
    memory = psutil.virtual_memory()
    threads = psutil.cpu_count() or 1
    cores = psutil.cpu_count(logical=False) or threads
    gpus, driver, reason = _nvidia()
    return MachineFacts(gpus, driver, reason, memory.total, memory.available, cores, threads)


def _nvidia() -> tuple[list[GpuFacts], str, str]:
    """(GPUs, driver version, why there are none)."""
    try:
        import pynvml
    except ImportError as error:
        return [], "", str(error)
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError) as error:
        return [], "", str(error)
    try:
        count = pynvml.nvmlDeviceGetCount()
        return [_gpu(index) for index in range(count)], _text(pynvml.nvmlSystemGetDriverVersion()), ""
    except pynvml.NVMLError as error:
        return [], "", str(error)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(index: int) -> GpuFacts:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = _text(pynvml.nvmlDeviceGetName(handle))
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError:  # unified memory has none of its own
        return GpuFacts(index, name, None, None)
    return GpuFacts(index, name, int(memory.total), int(memory.used))


def _text(value: str | bytes) -> str:
    """Older NVML bindings give bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


class GpuProbe(QObject):
    """Looks on a thread of its own: `start`, then `found` with `MachineFacts` comes on the window's thread."""

    found = Signal(object)

    def start(self) -> None:
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        facts = probe()
        with contextlib.suppress(RuntimeError):  # the window was closed meanwhile
            self.found.emit(facts)
