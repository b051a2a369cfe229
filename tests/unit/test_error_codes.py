"""Classification of exceptions, error texts and exit codes."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer_core import error_codes
from trainer_core.messages import ExitCode, TraindeckError, codes, format_message, template

ERROR_TEXTS = Path(__file__).parent / "recorded" / "error_texts.jsonl"  # of libraries and operating systems


def test_an_error_text_is_classified() -> None:
    for case in map(json.loads, ERROR_TEXTS.read_text(encoding="utf-8").splitlines()):
        failure = error_codes.classify_exception(case["text"])
        assert failure is not None, case
        assert failure.code == case["code"], case


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
    failure = error_codes.classify_exit_code(status, "win32", crashed=True)
    assert failure is not None
    assert failure.code == code
    assert failure.detail == f"0x{status & 0xFFFFFFFF:08X}"


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
    failures = [error_codes.classify_exit_code(status, "linux", crashed) for status, crashed in forms]
    assert [failure.code for failure in failures if failure] == [code] * 3


@pytest.mark.parametrize("platform", ["win32", "linux", "darwin"])
@pytest.mark.parametrize("code", list(ExitCode))
def test_exit_codes_of_the_trainer_are_not_classified(code: ExitCode, platform: str) -> None:
    assert error_codes.classify_exit_code(code, platform) is None


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_real_crash_is_classified() -> None:
    crash = [sys.executable, "-c", "import faulthandler; faulthandler._sigsegv()"]
    result = subprocess.run(crash, capture_output=True, check=False)
    failure = error_codes.classify_exit_code(result.returncode)
    assert failure is not None
    assert (failure.code, failure.detail) == ("failure.access_violation", "SIGSEGV")


def test_os_errors_are_classified_by_number() -> None:
    path = os.path.join("runs", "a")  # noqa: PTH118 - as text
    for number, code in (
        (errno.ENOSPC, "disk.full"),
        (errno.EMFILE, "failure.too_many_files"),
        (errno.EIO, "failure.disk_error"),
        (errno.ENAMETOOLONG, "failure.path_too_long"),
    ):
        failure = error_codes.classify_exception(OSError(number, os.strerror(number), path))
        assert failure is not None
        assert failure.code == code
        assert failure.params.get("path", path) == path


def test_the_last_output_is_used_if_the_exit_code_gives_no_cause() -> None:
    output = "terminate called\n  what():  [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)"
    from_output = [error_codes.classify_termination(code, output, "linux") for code in (-6, 1)]
    assert [failure.code for failure in from_output if failure] == ["failure.nccl_timeout"] * 2
    warning = "UserWarning: CUDA initialization: Found no NVIDIA driver on your system."
    killed = error_codes.classify_termination(-9, warning, "linux")
    assert killed is not None
    assert killed.code == "failure.killed"
    assert error_codes.classify_termination(0, output, "linux") is None


def test_a_decode_error_names_the_encoding() -> None:
    with pytest.raises(UnicodeDecodeError) as caught:
        b"\xff\xfe".decode("gbk")
    failure = error_codes.classify_exception(caught.value)
    assert failure is not None
    assert "'gbk' codec can't decode byte 0xff" in format_message(failure.code, failure.params, "en")


def test_the_cause_of_an_exception_is_classified() -> None:
    error = RuntimeError("saving failed")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    failure = error_codes.classify_exception(error)
    assert failure is not None
    assert failure.code == "disk.full"


def test_an_error_with_a_code_keeps_it() -> None:
    failure = error_codes.classify_exception(TraindeckError("data.not_found", path="a.txt"))
    assert failure is not None
    assert (failure.code, failure.params, failure.exit_code) == ("data.not_found", {"path": "a.txt"}, ExitCode.DATA)


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
    classified = {
        *error_codes.WINERROR_CODES.values(),
        *error_codes._ERRNO_CODES.values(),
        *(code for _, code in (*error_codes._ERROR_PATTERNS, *error_codes._CRASH_PATTERNS)),
        *error_codes.NTSTATUS_CODES.values(),
        *(code for _, code in error_codes.SIGNALS.values()),
    }
    assert classified <= set(codes())
    assert set(codes("failure.")) <= classified
    assert set(codes()) >= error_codes.TRANSIENT_CODES
    for code in codes("failure."):
        assert template(code, "en")[1]
        assert template(code, "zh")[1]


def run_command(raised: str) -> tuple[dict[str, object], int]:
    """Return the last event and the exit code of a command that raises `raised`, a Python expression."""
    program = f"""
import sys
from trainer_core.command_runner import CommandContext
with CommandContext("json") as context:
    raise {raised}
sys.exit(context.exit_code)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    return json.loads(result.stdout.splitlines()[-1]), result.returncode


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
    event, returncode = run_command(raised)
    assert (event["type"], event["code"], event["exit_code"], returncode) == ("error", code, exit_code, exit_code)
    assert "?" not in format_message(code, event["params"], "en")
    assert event["detail"]
