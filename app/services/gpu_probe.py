"""Hardware of this machine, read without torch in a thread."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import re
import sys
import threading
from pathlib import Path
from typing import Final

from PySide6.QtCore import QObject, Signal

from trainer_core.system.hardware import probe


class GpuProbe(QObject):
    """Probes the hardware in a thread: 20 ms, or seconds if a driver has to wake up.

    `completed` is emitted in the thread of this object; by then, the other attributes are set.
    """

    completed = Signal(object)  # MachineInfo

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.nvidia_card_found = False  # with or without a driver
        self.torch_version = ""

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        machine = probe()
        self.nvidia_card_found = nvidia_card_present()
        self.torch_version = torch_version()
        with contextlib.suppress(RuntimeError):  # the window was closed in the meantime
            self.completed.emit(machine)


_DISPLAY_CLASS: Final = "{4d36e968-e325-11ce-bfc1-08002be10318}"  # GUID_DEVCLASS_DISPLAY
PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
_PRESENT_DEVICES_FILTER: Final = 0x100 | 0x200  # CM_GETIDLIST_FILTER_PRESENT | CM_GETIDLIST_FILTER_CLASS


def nvidia_card_present() -> bool:
    """Return whether the PCI bus has an NVIDIA display adapter, with or without a driver."""
    with contextlib.suppress(OSError, AttributeError):
        if sys.platform == "win32":
            return any("VEN_10DE" in name for name in _windows_adapter_ids())
        else:  # noqa: RET505 - the type checker follows platforms only through else
            return _linux_adapter_present()
    return False


if sys.platform == "win32":

    def _windows_adapter_ids() -> list[str]:
        """Return the instance ids of the present display adapters: PCI\\VEN_10DE&DEV_2504&…"""
        manager, length = ctypes.WinDLL("cfgmgr32"), ctypes.c_ulong()
        if manager.CM_Get_Device_ID_List_SizeW(ctypes.byref(length), _DISPLAY_CLASS, _PRESENT_DEVICES_FILTER) != 0:
            return []
        buffer = ctypes.create_unicode_buffer(length.value)
        if manager.CM_Get_Device_ID_ListW(_DISPLAY_CLASS, buffer, length, _PRESENT_DEVICES_FILTER) != 0:
            return []
        return "".join(buffer).upper().split("\0")


def _linux_adapter_present() -> bool:
    return any(
        (device / "vendor").read_text(encoding="ascii").strip() == "0x10de"
        and (device / "class").read_text(encoding="ascii").startswith("0x03")
        for device in (PCI_DEVICES.iterdir() if PCI_DEVICES.is_dir() else ())
    )


def torch_version() -> str:
    """Return the version of the installed torch without importing it, or an empty string."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.origin:
            # importlib.metadata would take 8 ms and 1 MB.
            text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
            if match := re.search(r"^__version__ *= *['\"](.+?)['\"]", text, re.MULTILINE):
                return match[1]
    return ""
