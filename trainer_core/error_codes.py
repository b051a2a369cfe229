"""Classifies exceptions and exit codes as `TraindeckError`.

`classify_exception` uses numbers (errno, WinError) and the messages of PyTorch, CUDA, NCCL, Windows and Linux;
`classify_exit_code` how a process ended. Numbers take precedence: Windows localizes its messages.

No torch, no Qt.
"""

from __future__ import annotations

import errno
import functools
import re
import sys
from collections.abc import Iterator
from typing import Final

from trainer_core.messages import ExitCode, TraindeckError, Value

_WINDOWS: Final = "win32"  # value of `sys.platform`
_LONG_PATH: Final = 250  # characters; Windows limits paths to 260, of folders to 248

TRANSIENT_CODES: Final = frozenset(
    {
        "device.failed",
        "failure.illegal_access",
        "failure.launch",
        "failure.launch_timeout",
        "failure.ecc",
        "failure.driver_reset",
        "failure.gpu_busy",  # of a process that is just exiting after a crash
        "failure.gpu_library",
        "failure.nccl_timeout",
        "failure.nccl",
        "failure.peer_lost",
        "ranks.timeout",
        "memory.restart",
        "failure.worker_died",
        "failure.file_held",
        "failure.network_drive",
        "failure.mapped_file",
        "failure.access_violation",
        "failure.abort",
        "failure.heap",
    }
)
"""Codes of failures that may not recur when the run continues from its last checkpoint. A full disk, out of memory and
installation problems persist; a killed run must not restart itself.
"""


# --- exceptions ------------------------------------------------------------------------------------------

WINERROR_CODES: Final[dict[int, str]] = {
    **dict.fromkeys((5, 19), "failure.permission"),
    **dict.fromkeys((8, 14), "memory.out"),
    **dict.fromkeys((23, 483, 1117), "failure.disk_error"),
    **dict.fromkeys((32, 33), "failure.file_held"),
    **dict.fromkeys((39, 112), "disk.full"),
    **dict.fromkeys((53, 55, 59, 64, 121, 1006, 1167, 1231, 1232), "failure.network_drive"),
    **dict.fromkeys((127, 182), "failure.library_mismatch"),
    **dict.fromkeys((225, 1260, 4551), "failure.blocked"),  # by a virus scanner, or a policy
    **dict.fromkeys((1450, 1455), "failure.page_file"),
    126: "failure.library_missing",
    193: "failure.library_architecture",
    206: "failure.path_too_long",
    1114: "failure.library_start",
}

_ERRNO_CODES: Final[dict[int, str]] = {
    getattr(errno, name): code
    for name, code in {
        "ENOMEM": "memory.out",
        "ENOSPC": "disk.full",
        "EDQUOT": "disk.full",
        "EMFILE": "failure.too_many_files",
        "ENFILE": "failure.too_many_files",
        "ENAMETOOLONG": "failure.path_too_long",
        "EACCES": "failure.permission",
        "EPERM": "failure.permission",
        "EROFS": "failure.permission",
        "EIO": "failure.disk_error",
        "ESTALE": "failure.network_drive",
        "EHOSTDOWN": "failure.network_drive",
        "ENOTCONN": "failure.network_drive",  # a FUSE or network disk whose server is gone
    }.items()
    if hasattr(errno, name)
}

_ERROR_PATTERNS: Final[tuple[tuple[str, str], ...]] = (  # first match wins: specific patterns before general ones
    # memory
    (r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|NVML_ERROR_MEMORY", "memory.out"),
    (r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory|CUDNN_STATUS_ALLOC_FAILED", "memory.out"),
    (r"paging file is too small|页面文件太小", "failure.page_file"),
    (r"unable to (open|mmap) shared memory|out of shared memory|insufficient shared memory", "failure.shared_memory"),
    (r"signal: Bus error|/torch_\d+_\d+.*No space left", "failure.shared_memory"),
    (r"DefaultCPUAllocator: (can't allocate memory|not enough memory)|std::bad_alloc|bad allocation", "memory.out"),
    (r"^MemoryError|^numpy\S*MemoryError|Unable to allocate .* for an array with shape", "memory.out"),
    (r"Cannot allocate memory|not enough memory resources|can't start new thread", "memory.out"),
    # what PyTorch was built for, and the driver
    (r"no kernel image is available|not compatible with the current PyTorch installation", "failure.no_kernel_image"),
    (r"Torch not compiled with CUDA enabled|CUDA_VISIBLE_DEVICES.* CPU-only", "failure.cpu_torch"),
    (r"deserialize object on a CUDA device but torch.cuda.is_available\(\) is False", "failure.cpu_torch"),
    (r"driver version is insufficient|driver on your system is too old|INSUFFICIENT_DRIVER", "failure.driver_too_old"),
    (r"unsupported toolchain|not supported in the installed CUDA driver", "failure.driver_too_old"),
    (r"Found no NVIDIA driver|stub library|No CUDA GPUs are available", "failure.no_driver"),
    (r"no CUDA-capable device is detected|nvmlInit_v2_\(\)|NVML: Driver Not Loaded", "failure.no_driver"),
    (r"Driver/library version mismatch|forward compatibility was attempted", "failure.driver_mismatch"),
    (r"system not yet initialized|system has unsupported display driver", "failure.driver_mismatch"),
    # the GPU at work
    (r"device-side assert triggered|CUDA_ERROR_ASSERT", "failure.device_assert"),
    (r"illegal memory access|misaligned address|CUDA_ERROR_ILLEGAL_ADDRESS", "failure.illegal_access"),
    (r"illegal instruction was encountered|invalid program counter|warp illegal", "failure.illegal_access"),
    (r"ECC error|ECC_UNCORRECTABLE|uncorrectable NVLink|NVLINK_UNCORRECTABLE", "failure.ecc"),
    (r"fallen off the bus|GPU is lost|NVML_ERROR_GPU_IS_LOST|GPU requires reset", "failure.gpu_lost"),
    (r"launch timed out and was terminated|CUDA_ERROR_LAUNCH_TIMEOUT", "failure.launch_timeout"),
    (r"unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED|hardware stack error", "failure.launch"),
    (r"devices?(\(s\))? (is|are)(/are)? busy or unavailable|exclusive.* in use", "failure.gpu_busy"),
    # several processes
    (r"collective operation timeout|ProcessGroupNCCL.*(timeout|timed out|stuck)", "failure.nccl_timeout"),
    (r"NCCL (error|WARN|communicator)|ncclSystemError|ncclInternalError|ncclRemoteError", "failure.nccl"),
    (r"ncclUnhandledCudaError|unhandled cuda error.*nccl", "failure.nccl"),
    (r"gloo.*(Connection|Read error|Write error|timed out|timeout)|Connection closed by peer", "failure.peer_lost"),
    (r"Connection reset by peer|client socket has (timed out|failed)|monitoredBarrier", "failure.peer_lost"),
    (r"(TCPStore|recvValue|sendBytes|waitForInput).*(timeout|timed out|failed)|DistNetworkError", "failure.peer_lost"),
    (r"Timed out (waiting \d+ms for|after \d+ seconds waiting for clients)", "failure.peer_lost"),
    (r"DistBackendError", "failure.nccl"),
    # compilers
    (r"triton (installation|is not|compilation)|TritonMissing|triton\.compiler|triton\.runtime", "failure.compile"),
    (r"(torch\._inductor|torch\._dynamo)\.exc|InductorError|BackendCompilerFailed|CppCompileError", "failure.compile"),
    (r"Compiler: \S+ is not found|No working C\+\+ compiler|PTXASError|out of resource: shared", "failure.compile"),
    # libraries of NVIDIA
    (r"(CUBLAS|CUDNN)_STATUS_(NOT_SUPPORTED|ARCH_MISMATCH)|No execution plans? support", "failure.gpu_library_refused"),
    (r"CUBLAS_STATUS_|CUDNN_STATUS_|cuDNN error|CUSOLVER_STATUS_|cuDNN Frontend error", "failure.gpu_library"),
    (r"CUDA (driver )?error: (unknown error|driver shutting down)|CUDA unknown error", "failure.driver_reset"),
    (r"cuda runtime error \(999\)|device kernel image is invalid|context is destroyed", "failure.driver_reset"),
    # loader processes
    (r"DataLoader worker.*(exited unexpectedly|killed by signal)", "failure.worker_died"),
    (r"Pin memory thread exited|DataLoader timed out|A process in the process pool was term", "failure.worker_died"),
    (r"Too many open files|received 0 items of ancdata", "failure.too_many_files"),
    # libraries that do not load
    (r"^UnicodeDecodeError|^UnicodeEncodeError|codec can't (de|en)code", "failure.encoding"),
    (
        r"undefined symbol|version `\S+' not found|procedure could not be found|找不到指定的程序",
        "failure.library_mismatch",
    ),
    (r"invalid ELF|wrong ELF class|not a valid Win32 application|不是有效的 Win32", "failure.library_architecture"),
    (r"initialization routine failed|动态链接库.*初始化例程失败", "failure.library_start"),
    (r"DLL load failed|cannot open shared object file|specified module could not be", "failure.library_missing"),
    (r"找不到指定的模块", "failure.library_missing"),
    # disks
    (r"No space left on device|Disk quota exceeded|not enough space on the disk|磁盘空间不足", "disk.full"),
    (r"File ?name too long", "failure.path_too_long"),
    (r"Stale file handle|network name is no longer available|unexpected network error", "failure.network_drive"),
    (r"Input/output error|I/O device error", "failure.disk_error"),
    # what is left
    (r"CUDA error|AcceleratorError|cuda runtime error|CUDA driver error|cudaError", "device.failed"),
    (r"out of memory", "memory.out"),
)
_CRASH_PATTERNS: Final[tuple[tuple[str, str], ...]] = (  # written by faulthandler when a process crashes
    (r"Fatal Python error: Segmentation fault|fatal exception: access violation", "failure.access_violation"),
    (r"Fatal Python error: Illegal instruction|fatal exception: illegal instruction", "failure.cpu_instruction"),
    (r"fatal exception: stack overflow|Cannot recover from stack overflow", "failure.stack"),
    (r"Fatal Python error: Bus error", "failure.shared_memory"),
)
EXCEPTION_CODES: Final = frozenset(
    {*WINERROR_CODES.values(), *_ERRNO_CODES.values(), *(code for _, code in _ERROR_PATTERNS)}
)
"""Codes of failures that a trainer may report itself; the others are observed from outside only."""

_WINERROR_PATTERN: Final = re.compile(r"\[WinError (\d+)\]")
_ERRNO_PATTERN: Final = re.compile(r"\[Errno (\d+)\]")
_NTSTATUS_PATTERN: Final = re.compile(r"\b0x[0-9a-fA-F]{8}\b")
_SIGNAL_PATTERN: Final = re.compile(r"\bSIG(SEGV|ILL|BUS|ABRT|KILL)\b")
_RUST_OS_ERROR_PATTERN: Final = re.compile(r"\(os error (\d+)\)")  # Rust libraries: tokenizers, safetensors
_PATH_CODES: Final = frozenset(
    f"failure.{name}" for name in ("path_too_long", "permission", "file_held", "network_drive", "disk_error")
)
_GPU_PATTERN: Final = re.compile(r"CUDA|CUBLAS|CUDNN|NVML|HIP|AcceleratorError", re.IGNORECASE)


def to_traindeck_error(error: Exception) -> TraindeckError:
    """An exception with its message code; `internal` if none is known."""
    if isinstance(error, TraindeckError):
        return error
    text, found = f"{type(error).__name__}: {error}", classify_exception(error)
    if found is not None:
        return TraindeckError(found.code, text, **found.params)
    return TraindeckError("internal", text, kind=type(error).__name__, log="rank-N.log")


def classify_exception(error: BaseException | str, platform: str = sys.platform) -> TraindeckError | None:
    """Return the error for an exception or its causes, or for the last lines of a process; None: unknown.

    `detail` is the text of the exception.
    """
    if isinstance(error, str):
        code = _code_from_text(error, platform)
        return TraindeckError(code, error, **_params(code, error)) if code else None
    for link in _exception_chain(error):
        if isinstance(link, TraindeckError):
            return link
        text = f"{type(link).__name__}: {link}"
        code = _code_from_os_error(link, platform) if isinstance(link, OSError) else None
        code = code or _code_from_text(text, platform)
        if code:
            return TraindeckError(code, text, **_params(code, text, str(getattr(link, "filename", None) or "")))
    return None


def _exception_chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def _code_from_os_error(error: OSError, platform: str) -> str | None:
    if (number := getattr(error, "winerror", None)) is not None:
        return _code_from_winerror(number, str(error.filename or ""))
    if platform == _WINDOWS and error.errno == errno.EACCES:
        return "failure.permission"  # the C library reports this also for files that are in use
    return _ERRNO_CODES.get(error.errno or 0)


def _code_from_winerror(number: int, path: str) -> str | None:
    if number == 3 and len(path) >= _LONG_PATH:  # path not found, because it is truncated
        return "failure.path_too_long"
    return WINERROR_CODES.get(number)


def _code_from_text(text: str, platform: str) -> str | None:
    if found := _WINERROR_PATTERN.search(text):
        if code := _code_from_winerror(int(found[1]), text):
            return code
    elif found := _RUST_OS_ERROR_PATTERN.search(text):
        number = int(found[1])
        if code := _code_from_winerror(number, text) if platform == _WINDOWS else _ERRNO_CODES.get(number):
            return code
    for pattern, code in _compiled_patterns():
        if pattern.search(text):
            return code
    if found := _ERRNO_PATTERN.search(text):
        return _ERRNO_CODES.get(int(found[1]))
    if found := _NTSTATUS_PATTERN.search(text):
        return NTSTATUS_CODES.get(int(found[0], 16))
    if found := _SIGNAL_PATTERN.search(text):
        return dict(SIGNALS.values())[found[0]]
    return None


@functools.cache
def _compiled_patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Compiled on first use, so that the window starts faster."""
    return tuple(
        (re.compile(words, re.IGNORECASE | re.MULTILINE), code) for words, code in (*_CRASH_PATTERNS, *_ERROR_PATTERNS)
    )


def _params(code: str, text: str, path: str = "") -> dict[str, Value]:
    """Parameters of the message of `code`, as far as they are known here."""
    if code in ("memory.out", "device.failed"):
        return {"device": "cuda" if _GPU_PATTERN.search(text) else "cpu"}
    if code == "failure.encoding":
        return {"reason": text.partition(": ")[2] or text}
    if code not in _PATH_CODES:
        return {}
    found = re.search(r"'([^'\n]*[\\/][^'\n]*)'", text)
    return {"path": path or (found[1].replace("\\\\", "\\") if found else "?")}


# --- exit codes ------------------------------------------------------------------------------------------

NTSTATUS_CODES: Final[dict[int, str]] = {
    0xC0000005: "failure.access_violation",
    0xC0000006: "failure.mapped_file",  # in-page error: a mapped file could not be read
    0xC0000017: "failure.page_file",  # no memory
    0xC000001D: "failure.cpu_instruction",
    0xC000009A: "failure.page_file",  # insufficient resources
    0xC00000FD: "failure.stack",
    0xC000012D: "failure.page_file",  # the commitment limit
    0xC0000135: "failure.library_missing",
    0xC0000138: "failure.library_mismatch",  # ordinal not found
    0xC0000139: "failure.library_mismatch",  # entry point not found
    0xC000013A: "failure.interrupted",
    0xC0000142: "failure.library_start",
    0xC000007B: "failure.library_architecture",
    0xC0000374: "failure.heap",
    0xC0000409: "failure.abort",  # stack buffer overrun, or abort() by way of __fastfail
    0xC0000420: "failure.abort",  # assertion failure
    0xE06D7363: "failure.abort",  # uncaught C++ exception
    0x40010004: "failure.terminated",  # at log-off or shutdown
    0xC000026B: "failure.terminated",  # a library could not start during shutdown
}
SIGNALS: Final[dict[int, tuple[str, str]]] = {  # Linux numbers: name, code
    1: ("SIGHUP", "failure.interrupted"),
    2: ("SIGINT", "failure.interrupted"),
    4: ("SIGILL", "failure.cpu_instruction"),
    6: ("SIGABRT", "failure.abort"),
    7: ("SIGBUS", "failure.shared_memory"),
    9: ("SIGKILL", "failure.killed"),
    11: ("SIGSEGV", "failure.access_violation"),
    15: ("SIGTERM", "failure.terminated"),
}
_SHELL_SIGNAL_OFFSET: Final = 128  # added to signal numbers by shells and containers


def classify_exit_code(code: int, platform: str = sys.platform, crashed: bool = False) -> TraindeckError | None:
    """Return the error for an exit code; None: unknown, or a `messages.ExitCode`. `detail`: the status or signal.

    Windows codes may be signed or unsigned. Elsewhere `code` is minus a signal's number, 128 plus it, or with `crashed`
    (from Qt) the number itself.
    """
    if platform == _WINDOWS:
        status = code & 0xFFFFFFFF
        name = NTSTATUS_CODES.get(status)
        return TraindeckError(name, f"0x{status:08X}") if name else None
    number = code if crashed else -code if code < 0 else code - _SHELL_SIGNAL_OFFSET
    name, signal_code = SIGNALS.get(number, ("", ""))
    return TraindeckError(signal_code, name) if name else None


def classify_termination(
    code: int, output_tail: str, platform: str = sys.platform, crashed: bool = False
) -> TraindeckError | None:
    """Return the error of a process that sent no `error` event, from its exit code and last output.

    The output counts only if the code gives no cause, because it also contains warnings.
    """
    found = classify_exit_code(code, platform, crashed)
    if found is None and code in range(len(ExitCode)) and code != ExitCode.FAILED:
        return None
    if found is not None and found.code != "failure.abort":
        return found
    return classify_exception(output_tail, platform) or found
