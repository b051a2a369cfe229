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


def gpu_indices(module: Any) -> range:
    return range(query(module, "nvmlDeviceGetCount") or 0)


def decode_text(value: Any) -> str:
    """Older pynvml returns bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def memory_field(memory: Any, part: str) -> int | None:
    value = getattr(memory, part, None)
    return None if value is None or value == _UNKNOWN_MEMORY else int(value)
