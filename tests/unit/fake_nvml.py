"""A fake `pynvml` with two GPUs, the second of which reports almost nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

GIB = 2**30


class NVMLError(Exception):
    """Like `pynvml.NVMLError`. `value` is an nvmlReturn_t."""

    def __init__(self, value: int) -> None:
        super().__init__(
            {3: "Not Supported", 9: "Driver Not Loaded", 12: "NVML Shared Library Not Found"}.get(value, "?")
        )
        self.value = value


class FakeNvml:
    """GPU 0 supports every query. GPU 1 supports only name, UUID and memory; other queries raise "Not Supported".

    `init_error`: the nvmlReturn_t that `nvmlInit` raises. `sessions`: calls of `nvmlInit` without `nvmlShutdown`.
    """

    def __init__(
        self, gpus: int = 2, init_error: int | None = None, throttle: int = 0, driver: str = "580.65.06"
    ) -> None:
        self.gpus, self.init_error, self.throttle, self.driver = gpus, init_error, throttle, driver
        self.capability, self.cuda, self.sessions = (8, 6), 13000, 0

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise NVMLError(self.init_error)
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def nvmlDeviceGetCount(self) -> int:
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA RTX A6000" if handle == 0 else "Old Card"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}a0b1c2d-0000"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return (
            SimpleNamespace(total=48 * GIB, used=12 * GIB)
            if handle == 0
            else SimpleNamespace(total=2**64 - 1, used=GIB)
        )

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self.capability if handle == 0 else raise_not_supported()

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=87, memory=40) if handle == 0 else raise_not_supported()

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 250_500 if handle == 0 else raise_not_supported()

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 300_000 if handle == 0 else raise_not_supported()

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 71 if handle == 0 else raise_not_supported()

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return 1800 if handle == 0 else raise_not_supported()

    # The name in drivers before 535. Later ones call it nvmlDeviceGetCurrentClocksEventReasons.
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self.throttle if handle == 0 else raise_not_supported()


class EnergyNvml(FakeNvml):
    """Three GPUs with energy counters, except GPU number `without`."""

    def __init__(self, without: int | None = None) -> None:
        super().__init__(gpus=3)
        self.without, self.energy_mj = without, 5_000_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return raise_not_supported() if handle == self.without else self.energy_mj * (handle + 1)


def raise_not_supported() -> NoReturn:
    raise NVMLError(3)
