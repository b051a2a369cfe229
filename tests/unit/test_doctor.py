"""Command `doctor`: findings, their levels and actions, in both languages."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.cells import cell_len

from tests.unit.fake_nvml import GIB, FakeNvml
from trainer_core.messages import codes as message_codes
from trainer_core.messages import format_message, is_known, template
from trainer_core.system import files, hardware
from trainer_core.system.doctor import gpu, host, probe_process, report
from trainer_core.system.doctor.finding import SETUP_COMMAND, Finding, ok, problem

CPU_TORCH = [{"version": "2.13.0+cpu", "cuda": None, "hip": None}]
CUDA_TORCH: list[dict[str, Any]] = [{"version": "2.13.0+cu130", "cuda": "13.0", "hip": None}]
NO_DRIVER = FakeNvml(init_error=12)


def machine(nvml: FakeNvml | None = None) -> hardware.MachineInfo:
    return hardware.probe(nvml or FakeNvml(gpus=1))


def codes(findings: list[Finding], level: str | None = None) -> list[str]:
    return [finding.code for finding in findings if level in (None, finding.level)]


def find_code(findings: list[Finding], code: str) -> Finding:
    (finding,) = [finding for finding in findings if finding.code == code]
    return finding


# --- the report -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def diagnosis(tmp_path_factory: pytest.TempPathFactory) -> list[Finding]:
    return report.diagnose(tmp_path_factory.mktemp("home"))


def test_this_machine_has_no_problems(diagnosis: list[Finding]) -> None:
    assert [code for code in codes(diagnosis, "problem") if code != "doctor.disk_low"] == []
    assert {"doctor.python", "doctor.packages"} <= set(codes(diagnosis, "ok"))
    assert "doctor.check_failed" not in codes(diagnosis)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_findings_are_formatted_as_aligned_text(diagnosis: list[Finding], language: Any) -> None:
    lines = report.format_findings(diagnosis, language).splitlines()
    assert "Traindeck" in lines[0]
    starts = [line for line in lines if line.startswith("[")]
    assert len(starts) == len(diagnosis)
    assert len({cell_len(line[: line.index(" " + line.split(None, 1)[1])]) for line in starts}) <= 3
    assert lines[-1] == format_message("doctor.all_well", {}, language)


def test_findings_are_json_serializable(diagnosis: list[Finding]) -> None:
    for finding in diagnosis:
        document = json.loads(json.dumps(dataclasses.asdict(finding)))
        assert document["level"] in ("ok", "note", "problem")
        assert is_known(document["code"])


def test_problems_are_counted_at_the_end() -> None:
    findings = [problem("doctor.torch_missing", command="setup"), ok("doctor.page_file", gib="8.0")]
    text = report.format_findings(findings, "en")
    assert "[problem] PyTorch is not installed.\n          Run `setup`." in text
    assert "[ok]      Page file: 8.0 GiB." in text
    assert text.endswith("Problems found: 1. Solve them in this order.")


def test_diagnosis_imports_no_torch_and_no_qt() -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from trainer_core.system.doctor.report import diagnose\n"
        "diagnose(Path('.'))\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'PySide6')])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True)
    assert result.stdout.strip() == "[]"


def test_a_failing_check_becomes_a_note() -> None:
    def fail() -> list[Finding]:
        raise RuntimeError("check failed")

    (finding,) = report._run_check("RAM", fail)
    assert finding.code == "doctor.check_failed"
    assert "check failed" in str(finding.params["reason"])


# --- torch ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("results", "ending", "driver", "findings"),
    [
        (CPU_TORCH, "", 13000, ["ok doctor.torch_cpu", "problem doctor.torch_is_cpu"]),
        (CPU_TORCH, "", None, ["ok doctor.torch_cpu"]),
        ([*CUDA_TORCH, {"gpus": 1}, {"name": "A6000", "right": True}], "", 13000, ["ok doctor.torch_cuda"]),
        (
            [*CUDA_TORCH, {"init": {"error": "too old"}}],
            "",
            12080,
            ["ok doctor.torch_cuda", "problem doctor.driver_old"],
        ),
        ([*CUDA_TORCH, {"init": {"error": "?"}}], "", 13000, ["ok doctor.torch_cuda", "problem doctor.cuda_unusable"]),
        ([*CUDA_TORCH, {"init": {"error": "?"}}], "", None, ["ok doctor.torch_cuda"]),
        (
            [*CUDA_TORCH, {"gpus": 1}, {"name": "A6000", "error": "no kernel image is available"}],
            "",
            13000,
            ["ok doctor.torch_cuda", "problem doctor.gpu_unusable"],
        ),
        (  # crashed on the GPU
            [*CUDA_TORCH, {"gpus": 1}],
            "exit code 0xc0000005",
            13000,
            ["ok doctor.torch_cuda", "problem doctor.gpu_unusable"],
        ),
    ],
)
def test_findings_about_torch(
    results: list[dict[str, Any]], ending: str, driver: int | None, findings: list[str]
) -> None:
    nvml = FakeNvml(gpus=1, init_error=12 if driver is None else None)
    nvml.cuda = driver or 0
    result = gpu.check_torch(results, ending, machine(nvml))
    assert [f"{finding.level} {finding.code}" for finding in result] == findings


def test_a_cpu_build_is_repaired_by_the_setup_command() -> None:
    finding = find_code(gpu.check_torch(CPU_TORCH, "", machine()), "doctor.torch_is_cpu")
    assert finding.params["command"] == f"{SETUP_COMMAND} --torch auto"


def test_known_failures_are_explained_after_their_problem() -> None:
    problems = [
        Finding("problem", "doctor.gpu_unusable", {"reason": reason}) for reason in ("exit code 0xC0000005", "?")
    ]
    assert codes(list(report.add_causes(problems))) == [problems[0].code, "failure.access_violation", problems[1].code]
    (finding,) = gpu.check_torch([{"error": "no kernel image is available for execution"}], "", machine())
    assert codes(list(report.add_causes([finding])), "note") == ["failure.no_kernel_image"]


@pytest.mark.parametrize(
    ("results", "ending", "code"),
    [
        ([{"missing": True, "error": "No module named 'torch'"}], "exit code 0x0", "doctor.torch_missing"),
        ([{"missing": False, "error": "No module named 'sympy'"}], "exit code 0x0", "doctor.torch_broken"),
        ([{"error": "[WinError 126] … c10.dll", "winerror": 126}], "exit code 0x0", "doctor.vc_runtime"),
        ([{"error": "[WinError 1114] … c10.dll", "winerror": 1114}], "exit code 0x0", "doctor.vc_runtime"),
        ([{"error": "[WinError 1455] page file", "winerror": 1455}], "exit code 0x0", "doctor.torch_broken"),
        ([], "exit code 0xc000001d", "doctor.torch_broken"),
        ([], probe_process.TIMED_OUT, "doctor.torch_slow"),
    ],
)
def test_a_failed_import_of_torch_is_a_problem_with_an_action(
    results: list[dict[str, Any]], ending: str, code: str
) -> None:
    (finding,) = gpu.check_torch(results, ending, machine())
    assert (finding.level, finding.code) == ("problem", code)
    assert template(code, "en")[1]


@pytest.mark.parametrize(
    ("torch", "code"),
    [
        ("raise OSError('[WinError 126] 找不到指定的模块。 Error loading c10.dll')", "doctor.vc_runtime"),
        ("import os; os._exit(9)", "doctor.torch_broken"),
        ("import nothing_of_this_name", "doctor.torch_broken"),
        ("raise SystemError", "doctor.torch_broken"),
        ("__version__ = '9'\nclass version: cuda = None", "doctor.torch_cpu"),
    ],
)
def test_a_broken_torch_is_detected_in_a_real_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, code: str
) -> None:
    (tmp_path / "torch.py").write_text(torch, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    results, ending = probe_process.run_probe("torch")
    assert codes(gpu.check_torch(results, ending, machine(NO_DRIVER))) == [code]


def test_a_hanging_import_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(60)", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(probe_process, "TIMEOUT_S", 0.5)
    results, ending = probe_process.run_probe("torch")
    assert codes(gpu.check_torch(results, ending, machine())) == ["doctor.torch_slow"]


# --- driver and GPUs ----------------------------------------------------------------------------------------


def test_findings_about_the_driver_and_gpus() -> None:
    findings = gpu.check_gpus(machine(), installed=True)
    assert codes(findings) == ["doctor.driver", "doctor.gpu_bf16"]
    assert findings[1].params["vram_gib"] == "48.0"
    turing = FakeNvml(gpus=1)
    turing.capability = (7, 5)
    assert "doctor.gpu_fp16" in codes(gpu.check_gpus(machine(turing), installed=True))


@pytest.mark.parametrize(
    ("error", "installed", "level", "code"),
    [
        (12, False, "note", "doctor.no_driver"),
        (9, False, "note", "doctor.no_driver"),
        (12, True, "problem", "doctor.driver_broken"),
        (9, True, "problem", "doctor.driver_broken"),
        (18, True, "problem", "doctor.driver_restart"),
        (999, False, "problem", "doctor.driver_broken"),
    ],
)
def test_the_finding_depends_on_the_error_of_nvml(error: int, installed: bool, level: str, code: str) -> None:
    (finding,) = gpu.check_gpus(machine(FakeNvml(init_error=error)), installed)
    assert (finding.level, finding.code) == (level, code)


def test_a_driver_without_a_gpu_is_a_note() -> None:
    assert codes(gpu.check_gpus(machine(FakeNvml(gpus=0)), installed=True), "note") == ["doctor.no_devices"]


# --- packages, memory, folders ------------------------------------------------------------------------------


def test_a_package_that_cannot_be_imported_is_a_problem() -> None:
    results = [{"package": "numpy"}, {"package": "numpy", "version": "2"}, {"package": "rich"}]
    findings = host.check_packages([*results, {"package": "rich", "error": "No module named 'rich'"}], "")
    assert find_code(findings, "doctor.packages").params["versions"] == "numpy 2"
    assert find_code(findings, "doctor.package_broken").params["name"] == "rich"


def test_a_package_that_crashes_the_process_is_a_problem() -> None:
    findings = host.check_packages([{"package": "PySide6-Essentials"}], "exit code 0xb")
    finding = find_code(findings, "doctor.package_broken")
    assert (finding.params["name"], finding.params["reason"]) == ("PySide6-Essentials", "exit code 0xb")


@pytest.mark.parametrize(("page_file", "code"), [(16 * GIB, "doctor.page_file"), (0, "doctor.page_file_small")])
def test_a_small_page_file_is_reported(page_file: int, code: str) -> None:
    assert code in codes(host.check_memory(machine(), page_file))


def test_an_unknown_page_file_size_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("PdhAddEnglishCounterW failed. Performance counters may be disabled.")

    monkeypatch.setattr(host, "WINDOWS", True)
    monkeypatch.setattr(psutil, "swap_memory", fail)
    first, *others = codes(host.check_memory(machine()))
    assert first == "doctor.cpu"
    assert len(others) == 1


def test_checking_a_folder_leaves_no_files(tmp_path: Path) -> None:
    (finding,) = host.check_folder(tmp_path / "missing" / "folder")
    assert finding.code in ("doctor.disk", "doctor.disk_low")
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_folder_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**options: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    (finding,) = host.check_folder(tmp_path)
    assert (finding.level, finding.code) == ("problem", "doctor.not_writable")


@pytest.mark.parametrize(("free", "level"), [(1, "problem"), (5, "note"), (50, "ok")])
def test_low_disk_space_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda path: free * GIB)
    assert host.check_folder(tmp_path)[0].level == level


@pytest.mark.parametrize(
    ("root", "service"),
    [
        ("/users/me/OneDrive - School/Traindeck", "OneDrive"),
        ("/users/me/坚果云/Traindeck", "坚果云"),
        ("/users/me/Traindeck", None),
    ],
)
def test_cloud_folders_are_recognized(root: str, service: str | None) -> None:
    assert host.sync_service(Path(root)) == service


def test_a_missing_compiler_and_triton_are_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "find_compiler", lambda: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    findings = host.check_compilers([*CUDA_TORCH, {"gpus": 1}])
    assert [(finding.level, finding.code) for finding in findings] == [
        ("note", "doctor.no_compiler"),
        ("note", "doctor.no_triton"),
    ]
    for without_gpu in (CPU_TORCH, CUDA_TORCH, [*CUDA_TORCH, {"gpus": 0}]):
        assert codes(host.check_compilers(without_gpu)) == ["doctor.no_compiler"]


def test_every_doctor_message_is_used() -> None:
    folder = Path(report.__file__).parent
    source = "".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py"))
    known = message_codes("doctor.")
    composed = {"doctor.level_ok", "doctor.level_note", "doctor.level_problem", "doctor.page_file_small"}
    assert [code for code in known if f'"{code}"' not in source and code not in composed] == []
