"""Classification of exceptions, texts of libraries, and exit codes."""

# ruff: noqa: E501 - original texts

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from trainer_core import error_codes
from trainer_core.messages import ExitCode, TraindeckError, codes, format_message, template

CUDA_NOTE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
"""PyTorch appends this to every CUDA error. It mentions assertions, too."""

TEXTS = [
    # memory
    (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of "
        "which 0 bytes is free.",
        "memory.out",
    ),
    ("AcceleratorError: CUDA error: out of memory" + CUDA_NOTE, "memory.out"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "memory.out"),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 4503599627370496 bytes. Error code 12 (Cannot allocate memory)",
        "memory.out",
    ),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you tried to "
        "allocate 9663676416 bytes.",
        "memory.out",
    ),
    ("RuntimeError: std::bad_alloc", "memory.out"),
    ("RuntimeError: can't start new thread", "memory.out"),  # no memory for its stack
    (
        "MemoryError: Unable to allocate 29.8 GiB for an array with shape (4000000000,) and data type int64",
        "memory.out",
    ),
    (
        "OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading "
        '"D:\\anaconda3\\lib\\site-packages\\torch\\lib\\cudnn_cnn_infer64_8.dll" or one of its dependencies.',
        "failure.page_file",
    ),
    ("OSError: [WinError 1455] 页面文件太小，无法完成操作。", "failure.page_file"),
    (
        "RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit.",
        "failure.shared_memory",
    ),
    (
        "RuntimeError: unable to open shared memory object </torch_6204_2868> in read-write mode: Too many open files "
        "(24)",
        "failure.shared_memory",
    ),
    # PyTorch and the driver
    (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device" + CUDA_NOTE,
        "failure.no_kernel_image",
    ),
    (
        "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
        "failure.driver_too_old",
    ),
    (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",
        "failure.driver_too_old",
    ),
    (
        "AcceleratorError: CUDA error: the provided PTX was compiled with an unsupported toolchain." + CUDA_NOTE,
        "failure.driver_too_old",
    ),
    ("AssertionError: Torch not compiled with CUDA enabled", "failure.cpu_torch"),
    (
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "failure.no_driver",
    ),
    ("RuntimeError: No CUDA GPUs are available", "failure.no_driver"),
    ("Failed to initialize NVML: Driver/library version mismatch", "failure.driver_mismatch"),
    (
        "CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted "
        "on non supported HW",
        "failure.driver_mismatch",
    ),
    # the GPU at work
    ("AcceleratorError: CUDA error: device-side assert triggered" + CUDA_NOTE, "failure.device_assert"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered" + CUDA_NOTE, "failure.illegal_access"),
    ("RuntimeError: CUDA error: misaligned address" + CUDA_NOTE, "failure.illegal_access"),
    ("RuntimeError: CUDA error: unspecified launch failure" + CUDA_NOTE, "failure.launch"),
    ("RuntimeError: CUDA error: the launch timed out and was terminated" + CUDA_NOTE, "failure.launch_timeout"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered" + CUDA_NOTE, "failure.ecc"),
    (
        "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost. Reboot the system to recover this GPU",
        "failure.gpu_lost",
    ),
    ("NVRM: Xid (PCI:0000:01:00): 79, pid=1234, GPU has fallen off the bus.", "failure.gpu_lost"),
    (
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable" + CUDA_NOTE,
        "failure.gpu_busy",
    ),
    ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable" + CUDA_NOTE, "failure.gpu_busy"),
    ("RuntimeError: CUDA error: unknown error" + CUDA_NOTE, "failure.driver_reset"),
    (
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env "
        "variable CUDA_VISIBLE_DEVICES after program start.",
        "failure.driver_reset",
    ),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k, "
        "&alpha, a, lda, b, ldb, &beta, c, ldc)`",
        "failure.gpu_library",
    ),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "failure.gpu_library"),
    (
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, opa, opb, m, n, k)`",
        "failure.gpu_library_refused",
    ),
    ("AcceleratorError: CUDA error: invalid configuration argument" + CUDA_NOTE, "device.failed"),
    # several processes
    (
        "[Rank 6] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=880, OpType=BROADCAST, NumelIn=131137536, "
        "NumelOut=131137536, Timeout(ms)=1800000) ran for 1800902 milliseconds before timing out.",
        "failure.nccl_timeout",
    ),
    (
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, "
        "unhandled cuda error, NCCL version 2.14.3",
        "failure.nccl",
    ),
    (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:10895",
        "failure.peer_lost",
    ),
    (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1800000ms for recv "
        "operation to complete",
        "failure.peer_lost",
    ),
    (
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to "
        "(127.0.0.1, 29500).",
        "failure.peer_lost",
    ),
    # loader processes, compilers, libraries
    ("RuntimeError: DataLoader worker (pid(s) 3216) exited unexpectedly", "failure.worker_died"),
    (
        "RuntimeError: DataLoader worker (pid 325) is killed by signal: Killed. ",
        "failure.worker_died",
    ),
    ("RuntimeError: received 0 items of ancdata", "failure.too_many_files"),
    (
        "torch._inductor.exc.TritonMissing: Cannot find a working triton installation. Either the package is not "
        "installed or it is too old.",
        "failure.compile",
    ),
    (
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nRuntimeError: Compiler: cl is not found.",
        "failure.compile",
    ),
    (
        "InductorError: OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.",
        "failure.compile",
    ),
    (
        'OSError: [WinError 126] The specified module could not be found. Error loading "C:\\torch\\lib\\fbgemm.dll" or one '
        "of its dependencies.",
        "failure.library_missing",
    ),
    ("ImportError: DLL load failed while importing _C: 找不到指定的模块。", "failure.library_missing"),
    (
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        "failure.library_missing",
    ),
    ("OSError: [WinError 127] The specified procedure could not be found. Error loading", "failure.library_mismatch"),
    (
        "ImportError: DLL load failed while importing _multiarray_umath: The specified procedure could not be found.",
        "failure.library_mismatch",
    ),
    (
        "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by libtorch.so)",
        "failure.library_mismatch",
    ),
    (
        "ImportError: libtorch_cuda.so: undefined symbol: ncclCommRegister",
        "failure.library_mismatch",
    ),
    ("OSError: [WinError 193] %1 is not a valid Win32 application", "failure.library_architecture"),
    ("ImportError: DLL load failed: %1 不是有效的 Win32 应用程序。", "failure.library_architecture"),
    (
        "OSError: [WinError 1114] A dynamic link library (DLL) initialization routine failed. Error loading "
        '"C:\\torch\\lib\\c10.dll" or one of its dependencies.',
        "failure.library_start",
    ),
    ("OSError: [WinError 4551] An Application Control policy has blocked this file", "failure.blocked"),
    # the end of a log
    (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f1c (most recent call first):",
        "failure.access_violation",
    ),
    ("Windows fatal exception: access violation", "failure.access_violation"),
    ("Windows fatal exception: code 0xc0000374", "failure.heap"),
    ("Process finished with exit code -1073740791 (0xC0000409)", "failure.abort"),
    (
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGSEGV",
        "failure.access_violation",
    ),
    # files
    (
        "UnicodeDecodeError: 'gbk' codec can't decode byte 0xff in position 0: illegal multibyte sequence",
        "failure.encoding",
    ),
    (
        "UnicodeEncodeError: 'charmap' codec can't encode characters in position 0-3: character maps to <undefined>",
        "failure.encoding",
    ),
    ("OSError: [Errno 24] Too many open files: 'a/b.bin'", "failure.too_many_files"),
    ("Exception: No space left on device (os error 28)", "disk.full"),
    ("OSError: [WinError 112] There is not enough space on the disk", "disk.full"),
    ("PermissionError: [WinError 5] Access is denied: 'C:\\\\runs\\\\a'", "failure.permission"),
    ("PermissionError: [WinError 5] 拒绝访问。: 'C:\\\\runs\\\\a'", "failure.permission"),
    (
        "PermissionError: [WinError 32] The process cannot access the file because it is being used by another process: "
        "'C:\\\\runs\\\\a'",
        "failure.file_held",
    ),
    ("OSError: [WinError 59] An unexpected network error occurred: 'Z:\\\\runs\\\\a'", "failure.network_drive"),
    ("OSError: [WinError 64] 指定的网络名不再可用。: 'Z:\\\\runs\\\\a'", "failure.network_drive"),
    ("OSError: [WinError 1231] The network location cannot be reached: 'Z:\\\\runs\\\\a'", "failure.network_drive"),
    ("OSError: [WinError 206] The filename or extension is too long: 'C:\\\\a'", "failure.path_too_long"),
    (
        "FileNotFoundError: [WinError 3] The system cannot find the path: 'C:\\\\" + "a" * 260 + "'",
        "failure.path_too_long",
    ),
    ("OSError: [Errno 5] Input/output error: '/mnt/a/b'", "failure.disk_error"),
]


def test_an_error_text_is_classified() -> None:
    for text, code in TEXTS:
        found = error_codes.classify_exception(text)
        assert found is not None, text
        assert found.code == code, text


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: invalid literal for int() with base 10: 'x'",
        "KeyError: 'weight'",
        "FileNotFoundError: [Errno 2] No such file or directory: 'a.txt'",
        "FileNotFoundError: [WinError 3] The system cannot find the path specified: 'C:\\\\a'",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x4)",
        "IndexError: index out of range in self",
        "ModuleNotFoundError: No module named 'wandb'",
        "",
    ],
)
def test_a_programming_error_is_not_classified(text: str) -> None:
    assert error_codes.classify_exception(text) is None


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (3221225477, "failure.access_violation"),
        (-1073741819, "failure.access_violation"),
        (0xC0000409, "failure.abort"),
        (0xC000013A, "failure.interrupted"),
        (0xC0000135, "failure.library_missing"),
        (0xC0000142, "failure.library_start"),
        (0xC00000FD, "failure.stack"),
        (0xC0000374, "failure.heap"),
        (0xC000001D, "failure.cpu_instruction"),
        (0xC0000006, "failure.mapped_file"),
    ],
)
def test_a_windows_exit_status_is_classified_and_shown_in_hexadecimal(status: int, code: str) -> None:
    found = error_codes.classify_exit_code(status, "win32", crashed=True)
    assert found is not None
    assert found.code == code
    assert found.detail == f"0x{status & 0xFFFFFFFF:08X}"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (4, "failure.cpu_instruction"),
        (6, "failure.abort"),
        (7, "failure.shared_memory"),
        (9, "failure.killed"),
        (11, "failure.access_violation"),
        (15, "failure.terminated"),
    ],
)
def test_a_signal_is_classified_from_every_form_of_exit_code(number: int, code: str) -> None:
    forms = [(-number, False), (128 + number, False), (number, True)]  # by Python, by a shell, by Qt
    found = [error_codes.classify_exit_code(status, "linux", crashed) for status, crashed in forms]
    assert [failure.code for failure in found if failure] == [code] * 3


@pytest.mark.parametrize("platform", ["win32", "linux", "darwin"])
@pytest.mark.parametrize("code", list(ExitCode))
def test_exit_codes_of_the_trainer_are_not_classified(code: ExitCode, platform: str) -> None:
    assert error_codes.classify_exit_code(code, platform) is None


@pytest.mark.skipif(sys.platform == "win32", reason="processes are not ended by signals there")
def test_a_real_crash_is_classified() -> None:
    crash = [sys.executable, "-c", "import faulthandler; faulthandler._sigsegv()"]
    ended = subprocess.run(crash, capture_output=True, check=False)
    found = error_codes.classify_exit_code(ended.returncode)
    assert found is not None
    assert (found.code, found.detail) == ("failure.access_violation", "SIGSEGV")


def test_os_errors_are_classified_by_number() -> None:
    path = os.path.join("runs", "a")  # noqa: PTH118 - as text
    for number, code in (
        (errno.ENOSPC, "disk.full"),
        (errno.EMFILE, "failure.too_many_files"),
        (errno.EIO, "failure.disk_error"),
        (errno.ENAMETOOLONG, "failure.path_too_long"),
    ):
        found = error_codes.classify_exception(OSError(number, os.strerror(number), path))
        assert found is not None
        assert found.code == code
        assert found.params.get("path", path) == path


def test_the_last_output_is_used_if_the_exit_code_gives_no_cause() -> None:
    output = "terminate called\n  what():  [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)"
    from_output = [error_codes.classify_termination(code, output, "linux") for code in (-6, 1)]
    assert [found.code for found in from_output if found] == ["failure.nccl_timeout"] * 2
    warned = "UserWarning: CUDA initialization: Found no NVIDIA driver on your system."
    killed = error_codes.classify_termination(-9, warned, "linux")
    assert killed is not None
    assert killed.code == "failure.killed"
    assert error_codes.classify_termination(0, output, "linux") is None


def test_a_decode_error_names_the_encoding() -> None:
    with pytest.raises(UnicodeDecodeError) as caught:
        b"\xff\xfe".decode("gbk")
    found = error_codes.classify_exception(caught.value)
    assert found is not None
    assert "'gbk' codec can't decode byte 0xff" in format_message(found.code, found.params, "en")


def test_the_cause_of_an_exception_is_classified() -> None:
    error = RuntimeError("saving failed")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    found = error_codes.classify_exception(error)
    assert found is not None
    assert found.code == "disk.full"


def test_an_error_with_a_code_keeps_it() -> None:
    found = error_codes.classify_exception(TraindeckError("data.not_found", path="a.txt"))
    assert found is not None
    assert (found.code, found.params, found.exit_code) == ("data.not_found", {"path": "a.txt"}, ExitCode.DATA)


def test_a_cycle_of_causes_ends() -> None:
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert error_codes.classify_exception(first) is None


def test_only_transient_failures_allow_a_restart() -> None:
    transient = ("failure.launch", "failure.ecc", "failure.nccl_timeout", "failure.driver_reset", "failure.worker_died")
    permanent = (
        "memory.out",
        "disk.full",
        "failure.no_kernel_image",
        "failure.cpu_torch",
        "failure.killed",
        "internal",
    )
    assert [code in error_codes.TRANSIENT_CODES for code in transient + permanent] == [True] * 5 + [False] * 6


def test_every_failure_has_a_message_and_a_pattern() -> None:
    found = {
        *error_codes.WINERROR_CODES.values(),
        *error_codes._ERRNO_CODES.values(),
        *(code for _, code in (*error_codes._ERROR_PATTERNS, *error_codes._CRASH_PATTERNS)),
        *error_codes.NTSTATUS_CODES.values(),
        *(code for _, code in error_codes.SIGNALS.values()),
    }
    assert found <= set(codes())
    assert set(codes("failure.")) <= found
    assert set(codes()) >= error_codes.TRANSIENT_CODES
    for code in codes("failure."):
        assert template(code, "en")[1]
        assert template(code, "zh")[1]


def run_command(raised: str) -> tuple[dict[str, object], int]:
    """Return the last event and the exit code of a command that raises `raised`, a Python expression."""
    program = f"""
import sys
from trainer_core.command_runner import CommandContext
with CommandContext("json") as job:
    raise {raised}
sys.exit(job.exit_code)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    return json.loads(ended.stdout.splitlines()[-1]), ended.returncode


@pytest.mark.parametrize(
    ("raised", "code", "exit_code"),
    [
        ("RuntimeError('CUDA error: unspecified launch failure')", "failure.launch", ExitCode.DEVICE),
        ("MemoryError()", "memory.out", ExitCode.OUT_OF_MEMORY),
        ("OSError(28, 'No space left on device')", "disk.full", ExitCode.DISK_FULL),
        ("ZeroDivisionError('x')", "internal", ExitCode.FAILED),
    ],
)
def test_a_command_reports_a_classified_exception(raised: str, code: str, exit_code: ExitCode) -> None:
    event, ended = run_command(raised)
    assert (event["type"], event["code"], event["exit_code"], ended) == ("error", code, exit_code, exit_code)
    assert "?" not in format_message(code, event["params"], "en")
    assert event["detail"]
