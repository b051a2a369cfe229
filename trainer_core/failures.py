"""What exceptions and exit codes that nobody named mean: a code of `messages.CATALOGUE`, and whether to try again.

`of_exception` knows failures by their numbers (errno, WinError) and by the words that PyTorch, CUDA, NCCL, Windows
and Linux use for them; `of_exit_code` by how a process ended. Numbers come first: Windows words its errors in
the user's language.

No torch, no Qt.
"""

from __future__ import annotations

import errno
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from trainer_core.messages import ExitCode, TraindeckError, Value

_WINDOWS: Final = "win32"  # as `sys.platform` says it
_LONG_PATH: Final = 250  # characters; Windows ends paths at 260, of folders at 248

TRANSIENT: Final = frozenset(
    {
        "device.failed",
        "failure.illegal_access",
        "failure.launch",
        "failure.launch_timeout",
        "failure.ecc",
        "failure.driver_reset",
        "failure.gpu_busy",  # of a process that is just going away, after a crash
        "failure.gpu_library",
        "failure.nccl_timeout",
        "failure.nccl",
        "failure.peer_lost",
        "failure.worker_died",
        "failure.file_held",
        "failure.network_drive",
        "failure.mapped_file",
        "failure.access_violation",
        "failure.abort",
        "failure.heap",
    }
)
"""Codes of failures that may not come again when the run goes on from its last checkpoint. A full disk, memory that
ran out and whatever is wrong with the installation stay as they are; who was killed is not to rise by itself."""


def is_transient(code: str) -> bool:
    """Whether a run that ended with this code (of an `error` event, too) is worth starting again."""
    return code in TRANSIENT


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure by its name. `detail` is technical: the exception's own text, or the status of a process."""

    code: str  # of messages.CATALOGUE
    params: dict[str, Value] = field(default_factory=dict)
    detail: str = ""

    @property
    def transient(self) -> bool:
        """Whether starting again may help."""
        return is_transient(self.code)

    @property
    def exit_code(self) -> int:
        """What the trainer ends with for it: one of `messages.ExitCode`."""
        return int(TraindeckError(self.code).exit_code)


# --- exceptions ------------------------------------------------------------------------------------------

WINERRORS: Final[dict[int, str]] = {
    5: "failure.permission",
    8: "memory.out",  # not enough memory resources
    14: "memory.out",  # not enough storage is available to complete this operation
    19: "failure.permission",  # the media is write protected
    23: "failure.disk_error",  # cyclic redundancy check
    32: "failure.file_held",
    33: "failure.file_held",  # another process has locked a portion of the file
    39: "disk.full",
    53: "failure.network_drive",  # the network path was not found
    55: "failure.network_drive",  # the network resource is no longer available
    59: "failure.network_drive",  # an unexpected network error occurred
    64: "failure.network_drive",  # the specified network name is no longer available
    112: "disk.full",
    121: "failure.network_drive",  # the semaphore timeout period has expired
    126: "failure.library_missing",
    127: "failure.library_mismatch",
    182: "failure.library_mismatch",  # the operating system cannot run %1
    193: "failure.library_architecture",
    206: "failure.path_too_long",
    225: "failure.blocked",  # the file contains a virus
    483: "failure.disk_error",  # the request failed due to a fatal device hardware error
    1006: "failure.network_drive",  # the volume for a file has been externally altered
    1114: "failure.library_start",  # a dynamic link library (DLL) initialization routine failed
    1117: "failure.disk_error",  # an I/O device error
    1167: "failure.network_drive",  # the device is not connected
    1231: "failure.network_drive",  # the network location cannot be reached
    1232: "failure.network_drive",
    1260: "failure.blocked",  # blocked by group policy
    1450: "failure.page_file",  # insufficient system resources
    1455: "failure.page_file",
    4551: "failure.blocked",  # an application control policy has blocked this file
}

_ERRNOS: Final[dict[int, str]] = {
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

_WORDS: Final[tuple[tuple[str, str], ...]] = (  # the first that is found; what is narrow stands before what is wide
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
_LAST_WORDS: Final[tuple[tuple[str, str], ...]] = (  # what faulthandler writes of a process that dies
    (r"Fatal Python error: Segmentation fault|fatal exception: access violation", "failure.access_violation"),
    (r"Fatal Python error: Illegal instruction|fatal exception: illegal instruction", "failure.cpu_instruction"),
    (r"fatal exception: stack overflow|Cannot recover from stack overflow", "failure.stack"),
    (r"Fatal Python error: Bus error", "failure.shared_memory"),
)
OF_EXCEPTIONS: Final = frozenset({*WINERRORS.values(), *_ERRNOS.values(), *(code for _, code in _WORDS)})
"""Codes that a trainer may end with by itself; the others are seen only from outside."""

_WINERROR: Final = re.compile(r"\[WinError (\d+)\]")
_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")
_STATUS: Final = re.compile(r"\b0x[0-9a-fA-F]{8}\b")
_SIGNAL: Final = re.compile(r"\bSIG(SEGV|ILL|BUS|ABRT|KILL)\b")
_OS_ERROR: Final = re.compile(r"\(os error (\d+)\)")  # as Rust says it: tokenizers, safetensors
_OF_A_PATH: Final = frozenset(
    f"failure.{name}" for name in ("path_too_long", "permission", "file_held", "network_drive", "disk_error")
)
_GPU_WORDS: Final = re.compile(r"CUDA|CUBLAS|CUDNN|NVML|HIP|AcceleratorError", re.IGNORECASE)


def of_exception(error: BaseException | str, platform: str = sys.platform) -> Failure | None:
    """The failure that an exception is, or that a text (such as the last lines of a process) tells of; None: unknown.

    An exception that was raised from another is known by either.
    """
    if isinstance(error, str):
        code = _of_text(error, platform)
        return Failure(code, _params(code, error), error) if code else None
    for link in _chain(error):
        if isinstance(link, TraindeckError):
            return Failure(link.code, dict(link.params), link.detail)
        text = f"{type(link).__name__}: {link}"
        code = _of_number(link, platform) if isinstance(link, OSError) else None
        code = code or _of_text(text, platform)
        if code:
            return Failure(code, _params(code, text, str(getattr(link, "filename", None) or "")), text)
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def _of_number(error: OSError, platform: str) -> str | None:
    number = getattr(error, "winerror", None)
    if number is not None:
        return _of_winerror(number, str(error.filename or ""))
    if platform == _WINDOWS and error.errno == errno.EACCES:
        return "failure.permission"  # of the C library: it says so of files that somebody holds, too
    return _ERRNOS.get(error.errno or 0)


def _of_winerror(number: int, path: str) -> str | None:
    if number == 3 and len(path) >= _LONG_PATH:  # the path was not found, for it is cut off at its end
        return "failure.path_too_long"
    return WINERRORS.get(number)


def _of_text(text: str, platform: str) -> str | None:
    if found := _WINERROR.search(text):
        if code := _of_winerror(int(found[1]), text):
            return code
    elif found := _OS_ERROR.search(text):
        number = int(found[1])
        if code := _of_winerror(number, text) if platform == _WINDOWS else _ERRNOS.get(number):
            return code
    for pattern, code in _patterns():
        if pattern.search(text):
            return code
    if found := _ERRNO.search(text):
        return _ERRNOS.get(int(found[1]))
    if found := _STATUS.search(text):
        return STATUSES.get(int(found[0], 16))
    found = _SIGNAL.search(text)
    return next((SIGNALS[number] for number, name in SIGNAL_NAMES.items() if found and name == found[0]), None)


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Compiled when they are first needed: the window, which starts often and fails seldom, need not wait for it."""
    return tuple((re.compile(words, re.IGNORECASE | re.MULTILINE), code) for words, code in (*_LAST_WORDS, *_WORDS))


def _params(code: str, text: str, path: str = "") -> dict[str, Value]:
    """For the words of `code`, as far as they can be told from here."""
    if code in ("memory.out", "device.failed"):
        return {"device": "cuda" if _GPU_WORDS.search(text) else "cpu"}
    if code == "failure.encoding":
        return {"reason": text.partition(": ")[2] or text}
    if code not in _OF_A_PATH:
        return {}
    found = re.search(r"'([^'\n]*[\\/][^'\n]*)'", text)
    return {"path": path or (found[1].replace("\\\\", "\\") if found else "?")}


# --- exit codes ------------------------------------------------------------------------------------------

STATUSES: Final[dict[int, str]] = {
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
    0xE06D7363: "failure.abort",  # a C++ exception that nobody caught
    0x40010004: "failure.terminated",  # at log-off or shutdown
    0xC000026B: "failure.terminated",  # a library could not start, for the machine was shutting down
}
SIGNALS: Final[dict[int, str]] = {  # numbers of Linux
    1: "failure.interrupted",
    2: "failure.interrupted",
    4: "failure.cpu_instruction",
    6: "failure.abort",
    7: "failure.shared_memory",
    9: "failure.killed",
    11: "failure.access_violation",
    15: "failure.terminated",
}
SIGNAL_NAMES: Final[dict[int, str]] = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}
_BY_SHELL: Final = 128  # shells and containers add this to the number of a signal


def of_exit_code(code: int, platform: str = sys.platform, crashed: bool = False) -> Failure | None:
    """What the end of a process means; None where its code says nothing, as those of `messages.ExitCode` do here.

    Codes of Windows may be signed or not. Elsewhere `code` is minus a signal's number, 128 plus it, or with
    `crashed` (as Qt tells it) the number itself.
    """
    if platform == _WINDOWS:
        status = code & 0xFFFFFFFF
        name = STATUSES.get(status)
        return Failure(name, detail=f"0x{status:08X}") if name else None
    number = code if crashed else -code if code < 0 else code - _BY_SHELL
    name = SIGNALS.get(number)
    return Failure(name, detail=SIGNAL_NAMES[number]) if name else None


def of_ending(code: int, last_words: str, platform: str = sys.platform, crashed: bool = False) -> Failure | None:
    """What a process died of that sent no `error` event, by its exit code and what it printed last.

    The words count only where the code tells no cause: warnings stand among them, too.
    """
    found = of_exit_code(code, platform, crashed)
    if found is None and code in range(len(ExitCode)) and code != ExitCode.FAILED:
        return None
    if found is not None and found.code != "failure.abort":
        return found
    return of_exception(last_words, platform) or found
