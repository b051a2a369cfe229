"""What this machine has, asked without torch and off the window's thread."""

from __future__ import annotations

import contextlib
import threading

from PySide6.QtCore import QObject, Signal

from trainer_core import hardware
from trainer_core.hardware import GpuInfo, Machine, NoGpu

__all__ = ["GpuInfo", "GpuProbe", "Machine", "NoGpu", "probe"]


def probe() -> Machine:
    """Look now. Some 20 ms as a rule, seconds where a driver has to wake up: the window uses `GpuProbe`."""
    return hardware.probe()


class GpuProbe(QObject):
    """Looks on a thread of its own: `start`, then `found` with a `Machine` comes on the window's thread."""

    found = Signal(object)  # hardware.Machine

    def start(self) -> None:
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        machine = probe()
        with contextlib.suppress(RuntimeError):  # the window was closed meanwhile
            self.found.emit(machine)
