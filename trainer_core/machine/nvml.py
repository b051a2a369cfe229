"""NVML, NVIDIA's library that tells of its GPUs (package nvidia-ml-py, imported as `pynvml`).

Whatever this driver, card or platform does not tell is None. No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

NoGpu = Literal["no_package", "no_library", "driver_not_loaded", "driver_mismatch", "no_devices", "nvml_error"]

_ERRORS: Final[dict[int, NoGpu]] = {9: "driver_not_loaded", 12: "no_library", 18: "driver_mismatch"}  # nvmlReturn_t
_UNKNOWN_MEMORY: Final = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE


def _library_found() -> bool:
    """Whether NVML itself is there. Asked first: importing pynvml costs the window 3 MB for nothing."""
    if os.name == "nt":
        folders = (os.environ.get("WINDIR", ""), os.environ.get("PROGRAMW6432", ""))
        places = ("System32/nvml.dll", "NVIDIA Corporation/NVSMI/nvml.dll")
        return any((Path(folder) / place).exists() for folder, place in zip(folders, places, strict=True))
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


@contextlib.contextmanager
def opened(given: Any) -> Iterator[tuple[Any, NoGpu | None, str]]:
    """NVML while it is needed: (module, None, "") or (None, why not, its own words)."""
    module, reason, detail = given, None, ""
    try:
        if module is None and not _library_found():
            yield None, "no_library", "NVML Shared Library Not Found"
            return
        if module is None:
            module = importlib.import_module("pynvml")
        module.nvmlInit()
    except ImportError as error:
        yield None, "no_package", str(error)
        return
    except Exception as error:  # noqa: BLE001 - pynvml raises its own class, and others from inside a broken driver
        reason, detail = _ERRORS.get(getattr(error, "value", -1), "nvml_error"), str(error) or type(error).__name__
        yield None, reason, detail
        return
    try:
        yield module, None, ""
    finally:
        ask(module, "nvmlShutdown")


def ask(module: Any, function: str, *arguments: Any) -> Any:
    """What an NVML function answers; None where it fails, for whatever reason, or does not exist."""
    try:
        return getattr(module, function)(*arguments)
    except Exception:  # noqa: BLE001 - a figure that is missing must never end a run
        return None


def indices(module: Any) -> range:
    return range(ask(module, "nvmlDeviceGetCount") or 0)


def text(value: Any) -> str:
    """Older pynvml gives bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def size_of(memory: Any, part: str) -> int | None:
    value = getattr(memory, part, None)
    return None if value is None or value == _UNKNOWN_MEMORY else int(value)
