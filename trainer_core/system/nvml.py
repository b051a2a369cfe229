"""NVML, NVIDIA's management library (package nvidia-ml-py, imported as `pynvml`).

Values that the driver, card or platform does not report are None. No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any, Final, Literal

NoGpuReason = Literal["no_package", "no_library", "driver_not_loaded", "driver_mismatch", "no_devices", "nvml_error"]

_ERRORS: Final[dict[int, NoGpuReason]] = {9: "driver_not_loaded", 12: "no_library", 18: "driver_mismatch"}
_UNKNOWN_MEMORY: Final = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE


@contextlib.contextmanager
def nvml_session(library: Any) -> Iterator[tuple[Any, NoGpuReason | None, str]]:
    """NVML inside the context: (module, None, "") or (None, reason, message)."""
    try:
        module = library or importlib.import_module("pynvml")
        module.nvmlInit()
    except ImportError as error:
        yield None, "no_package", str(error)
        return
    except Exception as error:  # noqa: BLE001 - pynvml raises its own class, and others from inside a broken driver
        yield None, _ERRORS.get(getattr(error, "value", -1), "nvml_error"), str(error) or type(error).__name__
        return
    try:
        yield module, None, ""
    finally:
        query(module, "nvmlShutdown")


def query(module: Any, function: str, *arguments: Any) -> Any:
    """Result of an NVML function; None if it fails or does not exist."""
    try:
        return getattr(module, function)(*arguments)
    except Exception:  # noqa: BLE001 - a figure that is missing must never end a run
        return None


class NvmlDevice:
    """One GPU. `index` is NVML's number."""

    def __init__(self, module: Any, index: int) -> None:
        self._module, self.index = module, index
        self._handle = query(module, "nvmlDeviceGetHandleByIndex", index)
        self.name = str(self.query("nvmlDeviceGetName") or f"GPU {index}")
        self.uuid = str(self.query("nvmlDeviceGetUUID") or "")
        self._initial_energy_mj = self.query("nvmlDeviceGetTotalEnergyConsumption")  # since the driver was loaded

    def query(self, function: str, *arguments: Any) -> Any:
        """Result of an NVML function for this GPU; None if it fails."""
        return query(self._module, function, self._handle, *arguments)

    def memory(self) -> tuple[int | None, int | None]:
        """Used and total bytes."""
        found = self.query("nvmlDeviceGetMemoryInfo")
        used, total = (getattr(found, name, None) for name in ("used", "total"))
        return None if used == _UNKNOWN_MEMORY else used, None if total == _UNKNOWN_MEMORY else total

    def energy_j(self) -> float | None:
        """Joules since this object was created; None if the GPU has no counter."""
        now = self.query("nvmlDeviceGetTotalEnergyConsumption")
        return None if now is None or self._initial_energy_mj is None else (now - self._initial_energy_mj) / 1000

    def matches(self, uuid: str) -> bool:
        """Whether torch's UUID, which has no prefix, denotes this GPU."""
        plain = uuid.lower().removeprefix("gpu-")
        return bool(plain) and self.uuid.lower().removeprefix("gpu-").startswith(plain)


def list_devices(module: Any) -> list[NvmlDevice]:
    return [NvmlDevice(module, index) for index in range(query(module, "nvmlDeviceGetCount") or 0)]
