"""`doctor` finds what is wrong with a machine and says what to do, in both languages."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.unit.fake_nvml import GIB, FakeNvml
from trainer_core.messages import codes as message_codes
from trainer_core.messages import format_message, is_known, template
from trainer_core.system import doctor, files, hardware
from trainer_core.system.doctor import Finding, gpu, host, probe_process, report, software
from trainer_core.system.doctor.finding import SETUP_COMMAND, ok, problem
from trainer_core.system.doctor.probe_process import ProbeProcess

CPU_TORCH = [{"version": "2.13.0+cpu", "cuda": None, "hip": None}]
CUDA_TORCH: list[dict[str, Any]] = [{"version": "2.13.0+cu130", "cuda": "13.0", "hip": None}]
NO_DRIVER = FakeNvml(broken=12)


def machine(nvml: FakeNvml | None = None) -> hardware.MachineInfo:
    return hardware.probe(nvml or FakeNvml(cards=1))


def codes(findings: list[Finding], level: str | None = None) -> list[str]:
    return [finding.code for finding in findings if level in (None, finding.level)]


def only(findings: list[Finding], code: str) -> Finding:
    (finding,) = [finding for finding in findings if finding.code == code]
    return finding


# --- the whole ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Finding], float]:
    start = time.monotonic()
    return doctor.diagnose(tmp_path_factory.mktemp("home")), time.monotonic() - start


def test_this_machine_can_train(examined: tuple[list[Finding], float]) -> None:
    findings, _ = examined
    assert [code for code in codes(findings, "problem") if code != "doctor.disk_low"] == []
    assert {"doctor.python", "doctor.packages"} <= set(codes(findings, "ok"))
    assert "doctor.check_failed" not in codes(findings)


def test_the_examination_is_quick(examined: tuple[list[Finding], float]) -> None:
    assert examined[1] < 20.0  # about 3 s on a machine with nothing else to do


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_text_is_plain_aligned_and_complete(examined: tuple[list[Finding], float], language: Any) -> None:
    findings, _ = examined
    lines = doctor.format_findings(findings, language).splitlines()
    assert "Traindeck" in lines[0]
    starts = [line for line in lines if line.startswith("[")]
    assert len(starts) == len(findings)
    assert len({report._columns(line[: line.index(" " + line.split(None, 1)[1])]) for line in starts}) <= 3
    assert lines[-1] == format_message("doctor.all_well", {}, language)


def test_a_finding_can_be_sent_as_json(examined: tuple[list[Finding], float]) -> None:
    for finding in examined[0]:
        document = json.loads(json.dumps(dataclasses.asdict(finding)))
        assert document["level"] in ("ok", "note", "problem")
        assert is_known(document["code"])


def test_problems_are_counted_at_the_end() -> None:
    findings = [problem("doctor.torch_missing", command="setup"), ok("doctor.page_file", gib="8.0")]
    text = doctor.format_findings(findings, "en")
    assert "[problem] PyTorch is not installed.\n          Run `setup`." in text
    assert "[ok]      Page file: 8.0 GiB." in text
    assert text.endswith("Problems found: 1. Solve them from the top down.")


def test_looking_at_the_machine_leaves_torch_and_qt_out_of_this_process() -> None:
    script = (
        "import sys; from pathlib import Path; from trainer_core.system import doctor; doctor.diagnose(Path('.'))\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'PySide6')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "[]"


def test_a_check_that_fails_does_not_hide_the_others() -> None:
    def fail() -> list[Finding]:
        raise RuntimeError("odd machine")

    (finding,) = report._run_check("RAM", fail)
    assert finding.code == "doctor.check_failed"
    assert "odd machine" in str(finding.params["reason"])


# --- torch ------------------------------------------------------------------------------------------------


def test_a_cpu_build_beside_a_driver_is_a_problem_with_the_command_that_repairs_it() -> None:
    finding = only(gpu.check_torch(CPU_TORCH, "", machine()), "doctor.torch_is_cpu")
    assert finding.level == "problem"
    assert finding.params["command"] == f"{SETUP_COMMAND} --torch auto"


def test_a_cpu_build_without_a_driver_is_as_it_should_be() -> None:
    assert codes(gpu.check_torch(CPU_TORCH, "", machine(NO_DRIVER))) == ["doctor.torch_cpu"]


def test_a_cuda_build_that_computes_is_fine() -> None:
    answers = [*CUDA_TORCH, {"gpus": 1}, {"name": "A6000", "right": True}]
    (finding,) = gpu.check_torch(answers, "", machine())
    assert (finding.level, finding.code, finding.params["gpus"]) == ("ok", "doctor.torch_cuda", 1)


def test_a_driver_too_old_for_the_build_is_told_so() -> None:
    nvml = FakeNvml(cards=1)
    nvml.cuda = 12080
    answers = [*CUDA_TORCH, {"init": {"error": "The NVIDIA driver on your system is too old"}}]
    finding = only(gpu.check_torch(answers, "", machine(nvml)), "doctor.driver_old")
    assert finding.params["driver_cuda"] == "12.8"


def test_a_gpu_that_fails_to_compute_is_a_problem() -> None:
    answers = [*CUDA_TORCH, {"gpus": 1}, {"name": "A6000", "error": "no kernel image is available"}]
    assert "doctor.gpu_unusable" in codes(gpu.check_torch(answers, "", machine()), "problem")


def test_a_gpu_that_takes_the_process_down_is_a_problem() -> None:
    findings = gpu.check_torch([*CUDA_TORCH, {"gpus": 1}], "exit code 0xc0000005", machine())
    assert only(findings, "doctor.gpu_unusable").params["reason"] == "exit code 0xc0000005"


def test_a_cuda_build_that_finds_no_gpu_says_why() -> None:
    answers = [*CUDA_TORCH, {"init": {"error": "CUDA unknown error"}}]
    assert only(gpu.check_torch(answers, "", machine()), "doctor.cuda_unusable").params["reason"]
    assert codes(gpu.check_torch(answers, "", machine(NO_DRIVER)), "problem") == []


def test_a_reason_that_is_known_by_name_is_explained_after_its_problem() -> None:
    found = [Finding("problem", "doctor.gpu_unusable", {"reason": reason}) for reason in ("exit code 0xC0000005", "?")]
    assert codes(list(report.add_causes(found))) == [found[0].code, "failure.access_violation", found[1].code]
    (old,) = gpu.check_torch([{"error": "no kernel image is available for execution"}], "", machine())
    assert codes(list(report.add_causes([old])), "note") == ["failure.no_kernel_image"]


@pytest.mark.parametrize(
    ("answers", "ending", "code"),
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
def test_an_import_of_torch_that_fails_is_a_problem_with_a_remedy(
    answers: list[dict[str, Any]], ending: str, code: str
) -> None:
    (finding,) = gpu.check_torch(answers, ending, machine())
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
def test_a_broken_torch_is_recognised_from_a_real_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, code: str
) -> None:
    (tmp_path / "torch.py").write_text(torch, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with ProbeProcess("torch") as trial:
        answers, ending = trial.results()
    assert codes(gpu.check_torch(answers, ending, machine(NO_DRIVER))) == [code]


def test_an_import_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(60)", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(probe_process, "TIMEOUT_S", 0.5)
    with ProbeProcess("torch") as trial:
        answers, ending = trial.results()
    assert codes(gpu.check_torch(answers, ending, machine())) == ["doctor.torch_slow"]


# --- driver and cards ---------------------------------------------------------------------------------------


def test_cards_are_told_with_memory_capability_and_bf16() -> None:
    findings = gpu.check_gpus(machine(), installed=True)
    assert codes(findings) == ["doctor.driver", "doctor.gpu_bf16"]
    assert findings[1].params["vram_gib"] == "48.0"
    old = FakeNvml(cards=1)
    old.capability = (7, 5)
    assert "doctor.gpu_fp16" in codes(gpu.check_gpus(machine(old), installed=True))


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
def test_why_there_is_no_gpu_decides_what_to_do(error: int, installed: bool, level: str, code: str) -> None:
    (finding,) = gpu.check_gpus(machine(FakeNvml(broken=error)), installed)
    assert (finding.level, finding.code) == (level, code)


def test_a_driver_without_a_card_is_a_note() -> None:
    assert codes(gpu.check_gpus(machine(FakeNvml(cards=0)), installed=True), "note") == ["doctor.no_devices"]


# --- packages, memory, folders, terminal ---------------------------------------------------------------------


def test_a_package_that_cannot_be_imported_is_named_with_its_reason() -> None:
    answers = [{"package": "numpy"}, {"package": "numpy", "version": "2"}, {"package": "rich"}]
    findings = software.check_packages([*answers, {"package": "rich", "error": "No module named 'rich'"}], "")
    assert only(findings, "doctor.packages").params["versions"] == "numpy 2"
    assert only(findings, "doctor.package_broken").params["name"] == "rich"


def test_a_package_that_takes_the_process_down_is_named() -> None:
    findings = software.check_packages([{"package": "PySide6-Essentials"}], "exit code 0xb")
    broken = only(findings, "doctor.package_broken")
    assert (broken.params["name"], broken.params["reason"]) == ("PySide6-Essentials", "exit code 0xb")


@pytest.mark.parametrize(("page_file", "code"), [(16 * GIB, "doctor.page_file"), (0, "doctor.page_file_small")])
def test_a_small_page_file_is_noted(page_file: int, code: str) -> None:
    assert code in codes(host.check_memory(machine(), page_file))


def test_a_page_file_that_windows_does_not_tell_of_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("PdhAddEnglishCounterW failed. Performance counters may be disabled.")

    monkeypatch.setattr(host, "WINDOWS", True)
    monkeypatch.setattr(psutil, "swap_memory", refuse)
    found = codes(host.check_memory(machine()))
    assert found[0] == "doctor.cpu"
    assert len(found) == 2


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path: Path) -> None:
    (finding,) = host.check_folder(tmp_path / "not" / "there", {})
    assert finding.code in ("doctor.disk", "doctor.disk_low")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, content: bytes) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    (finding,) = host.check_folder(tmp_path, {})
    assert (finding.level, finding.code) == ("problem", "doctor.not_writable")


@pytest.mark.parametrize(("free", "level"), [(1, "problem"), (5, "note"), (50, "ok")])
def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda path: free * GIB)
    assert host.check_folder(tmp_path, {})[0].level == level


@pytest.mark.parametrize(
    ("root", "environ", "service"),
    [
        ("/users/me/cloud/Traindeck", {"OneDrive": "/users/me/cloud"}, "OneDrive"),
        ("/users/me/OneDrive - School/Traindeck", {}, "OneDrive"),
        ("/users/me/坚果云/Traindeck", {}, "坚果云"),
        ("/users/me/Traindeck", {"OneDrive": "/users/me/cloud"}, None),
        ("/users/me/Traindeck", {"OneDrive": ""}, None),
    ],
)
def test_a_synchronised_folder_is_recognised(root: str, environ: dict[str, str], service: str | None) -> None:
    assert host.sync_service(Path(root), environ) == service


def test_a_missing_compiler_and_triton_are_notes_that_say_what_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "find_compiler", lambda environ: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    findings = software.check_compilers([*CUDA_TORCH, {"gpus": 1}])
    assert [(finding.level, finding.code) for finding in findings] == [
        ("note", "doctor.no_compiler"),
        ("note", "doctor.no_triton"),
    ]
    for without_gpu in (CPU_TORCH, CUDA_TORCH, [*CUDA_TORCH, {"gpus": 0}]):
        assert codes(software.check_compilers(without_gpu)) == ["doctor.no_compiler"]


def test_every_code_of_the_doctor_exists_and_is_used() -> None:
    folder = Path(doctor.__file__).parent
    source = "".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py"))
    known = message_codes("doctor.")
    composed = {"doctor.level_ok", "doctor.level_note", "doctor.level_problem", "doctor.page_file_small"}
    assert [code for code in known if f'"{code}"' not in source and code not in composed] == []
