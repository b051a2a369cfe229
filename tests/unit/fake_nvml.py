"""A fake `pynvml` with two GPUs, the second of which reports almost nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

GIB = 2**30


class NVMLError(Exception):
    """Like that of pynvml; `value` is an nvmlReturn_t."""

    def __init__(self, value: int) -> None:
        super().__init__(
            {3: "Not Supported", 9: "Driver Not Loaded", 12: "NVML Shared Library Not Found"}.get(value, "?")
        )
        self.value = value


class FakeNvml:
    """GPU 0 supports everything, GPU 1 only its name and memory; the rest is Not Supported."""

    def __init__(self, cards: int = 2, broken: int | None = None, throttle: int = 0, driver: str = "580.65.06") -> None:
        self.cards, self.broken, self.throttle, self.driver = cards, broken, throttle, driver
        self.capability, self.cuda, self.open = (8, 6), 13000, 0

    def nvmlInit(self) -> None:
        if self.broken is not None:
            raise NVMLError(self.broken)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def nvmlDeviceGetCount(self) -> int:
        return self.cards

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, card: int) -> str:
        return "NVIDIA RTX A6000" if card == 0 else "Old Card"

    def nvmlDeviceGetUUID(self, card: int) -> str:
        return f"GPU-{card}a0b1c2d-0000"

    def nvmlDeviceGetMemoryInfo(self, card: int) -> Any:
        return (
            SimpleNamespace(total=48 * GIB, used=12 * GIB) if card == 0 else SimpleNamespace(total=2**64 - 1, used=GIB)
        )

    def nvmlDeviceGetCudaComputeCapability(self, card: int) -> tuple[int, int]:
        return self.capability if card == 0 else refuse()

    def nvmlDeviceGetUtilizationRates(self, card: int) -> Any:
        return SimpleNamespace(gpu=87, memory=40) if card == 0 else refuse()

    def nvmlDeviceGetPowerUsage(self, card: int) -> int:
        return 250_500 if card == 0 else refuse()

    def nvmlDeviceGetEnforcedPowerLimit(self, card: int) -> int:
        return 300_000 if card == 0 else refuse()

    def nvmlDeviceGetTemperature(self, card: int, sensor: int) -> int:
        return 71 if card == 0 else refuse()

    def nvmlDeviceGetClockInfo(self, card: int, kind: int) -> int:
        return 1800 if card == 0 else refuse()

    # Only the name in drivers before 535.
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: int) -> int:
        return self.throttle if card == 0 else refuse()


def refuse() -> NoReturn:
    raise NVMLError(3)
