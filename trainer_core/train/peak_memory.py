"""Peak memory of this process."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import torch


class PeakMemory:
    """Create before anything is allocated on the device. Values in bytes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0

    def gpu_bytes(self) -> int:
        """Peak of torch's allocator plus memory allocated beside it since: kernels, libraries. 0: not on a GPU."""
        if self._device.type != "cuda":
            return 0
        free, _ = torch.cuda.mem_get_info(self._device)
        beside = self._free - free - torch.cuda.memory_reserved(self._device)
        return int(torch.cuda.max_memory_reserved(self._device) + max(0, beside))

    def host_bytes(self) -> int:
        """Peak resident memory of this process."""
        if sys.platform == "linux":
            for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        if sys.platform == "darwin":
            import resource

            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        info = psutil.Process().memory_info()
        return int(getattr(info, "peak_wset", info.rss))
