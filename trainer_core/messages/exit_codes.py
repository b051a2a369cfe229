"""Exit codes of the trainer, and the exit code of each message code that ends a run."""

from __future__ import annotations

import enum
from typing import Final


class ExitCode(enum.IntEnum):
    """Exit codes of the trainer. Scripts rely on 0 to 8; every other failure is 1."""

    FINISHED = 0
    FAILED = 1
    USAGE = 2
    STOPPED = 3
    DATA = 4
    OUT_OF_MEMORY = 5
    DEVICE = 6
    DISK_FULL = 7
    NOT_VERIFIED = 8  # exported, but different from its checkpoint


_GPU_FAILURES: Final = (
    "no_kernel_image", "driver_too_old", "no_driver", "driver_mismatch", "cpu_torch", "device_assert",
    "illegal_access", "launch", "launch_timeout", "ecc", "gpu_lost", "driver_reset", "gpu_busy", "gpu_library",
    "gpu_library_refused", "nccl_timeout", "nccl", "peer_lost",
)  # fmt: skip
_MEMORY_FAILURES: Final = ("page_file", "killed", "shared_memory", "worker_died")
_EXIT_CODES: Final[dict[str, ExitCode]] = {  # by message code, or by its part before the dot
    **dict.fromkeys(("config", "usage", "run", "resume", "export", "model", "bench", "push"), ExitCode.USAGE),
    **dict.fromkeys(("evaluate", "serve"), ExitCode.USAGE),
    **dict.fromkeys(("export.different", "push.different", "push.not_verified"), ExitCode.NOT_VERIFIED),
    "push.failed": ExitCode.FAILED,
    **dict.fromkeys(("checkpoint.of_no_run", "checkpoint.mismatch", "checkpoint.old_version"), ExitCode.USAGE),
    **dict.fromkeys(("checkpoint.other_base", "checkpoint.no_base", "checkpoint.bad_adapter"), ExitCode.USAGE),
    **dict.fromkeys(("ranks.too_many", "ranks.no_shared_folder"), ExitCode.USAGE),
    **dict.fromkeys(("data", "base_model", "hub", "failure.encoding"), ExitCode.DATA),
    **dict.fromkeys(
        ("base_model.none", "base_model.not_found", "base_model.remote_code", "base_model.pickled"), ExitCode.USAGE
    ),
    **dict.fromkeys(("disk.full", "disk.unsaved", "export.disk_full"), ExitCode.DISK_FULL),
    **dict.fromkeys(("memory", "generate"), ExitCode.OUT_OF_MEMORY),
    **dict.fromkeys((f"failure.{name}" for name in _MEMORY_FAILURES), ExitCode.OUT_OF_MEMORY),
    "device": ExitCode.DEVICE,
    **dict.fromkeys((f"failure.{name}" for name in _GPU_FAILURES), ExitCode.DEVICE),
    "parent": ExitCode.STOPPED,
}


def exit_code_of(code: str) -> ExitCode:
    """Return the exit code of a run that ends with this message code."""
    return _EXIT_CODES.get(code) or _EXIT_CODES.get(code.partition(".")[0], ExitCode.FAILED)
