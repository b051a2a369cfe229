"""What this machine has, asked without torch and off the window's thread."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import sys
import threading
from pathlib import Path
from typing import Final

from PySide6.QtCore import QObject, Signal

from trainer_core.system import hardware
from trainer_core.system.hardware import GpuInfo, MachineInfo
from trainer_core.system.nvml import NoGpuReason

__all__ = ["GpuInfo", "GpuProbe", "MachineInfo", "NoGpuReason", "nvidia_card_present", "probe", "torch_version"]


def probe() -> MachineInfo:
    """Look now. Some 20 ms as a rule, seconds where a driver has to wake up: the window uses `GpuProbe`."""
    return hardware.probe()


class GpuProbe(QObject):
    """Looks on a thread of its own: `start`, then `found` with a `Machine` comes on the window's thread.

    By then `card_seen` tells whether an NVIDIA card is there, whatever its driver says, and `torch` which build of it.
    """

    completed = Signal(object)  # hardware.Machine

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.nvidia_card_found = False
        self.torch_version = ""

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        machine = probe()
        self.nvidia_card_found = nvidia_card_present()
        self.torch_version = torch_version()
        with contextlib.suppress(RuntimeError):  # the window was closed meanwhile
            self.completed.emit(machine)


_DISPLAY_CLASS: Final = "{4d36e968-e325-11ce-bfc1-08002be10318}"  # GUID_DEVCLASS_DISPLAY
PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
_PRESENT_DEVICES_FILTER: Final = 0x100 | 0x200  # CM_GETIDLIST_FILTER_PRESENT | CM_GETIDLIST_FILTER_CLASS


def nvidia_card_present() -> bool:
    """Whether an NVIDIA display adapter is on the bus, also one that no NVIDIA driver knows."""
    with contextlib.suppress(OSError, AttributeError):
        if sys.platform == "win32":
            return any("VEN_10DE" in name for name in _windows_adapter_ids())
        else:  # noqa: RET505 - the type checker follows platforms only through else
            return _linux_adapter_present()
    return False


if sys.platform == "win32":

    def _windows_adapter_ids() -> list[str]:
        """The instance ids of the display adapters that are plugged in: PCI\\VEN_10DE&DEV_2504&…"""
        manager, length = ctypes.WinDLL("cfgmgr32"), ctypes.c_ulong()
        if manager.CM_Get_Device_ID_List_SizeW(ctypes.byref(length), _DISPLAY_CLASS, _PRESENT_DEVICES_FILTER) != 0:
            return []
        buffer = ctypes.create_unicode_buffer(length.value)
        if manager.CM_Get_Device_ID_ListW(_DISPLAY_CLASS, buffer, length, _PRESENT_DEVICES_FILTER) != 0:
            return []
        return "".join(buffer).upper().split("\0")


def _linux_adapter_present() -> bool:
    devices = PCI_DEVICES
    return any(
        (device / "vendor").read_text(encoding="ascii").strip() == "0x10de"
        and (device / "class").read_text(encoding="ascii").startswith("0x03")
        for device in (devices.iterdir() if devices.is_dir() else ())
    )


def torch_version() -> str:
    """Of the torch that the trainer would use, by its metadata; empty where there is none."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return importlib.metadata.version("torch")
    return ""
