"""`doctor`: what this machine has, what is missing for training, and what to do about it.

`examine` gives findings as data (codes of messages.py), `render` words them as text to paste. Torch
and the packages are imported in child processes (doctor_child.py), both at once while the rest is
looked at. No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import secrets
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import psutil

from trainer_core import __version__, children, failures, files
from trainer_core.machine import hardware
from trainer_core.machine.hardware import Machine
from trainer_core.messages import Language, Value, what_and_do, word

Level = Literal["ok", "note", "problem"]
Answers = list[dict[str, Any]]

WINDOWS: Final = os.name == "nt"
_GIB: Final = 2**30
_CHILD_SECONDS: Final = 60.0  # the first import after an installation can be scanned for long
_LIBRARY_NOT_LOADED: Final = (126, 127, 1114)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `code` and `params` are worded by messages.py."""

    level: Level
    code: str
    params: dict[str, Value] = field(default_factory=dict)
    detail: str = ""  # technical, untranslated

    def document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"level": self.level, "code": self.code, "params": self.params, "detail": self.detail}


def ok(code: str, **params: Value) -> Finding:
    return Finding("ok", code, params)


def note(code: str, **params: Value) -> Finding:
    return Finding("note", code, params)


def problem(code: str, detail: str = "", **params: Value) -> Finding:
    return Finding("problem", code, params, detail)


def examine(root: Path) -> list[Finding]:
    """Look at everything; about 3 s, most of it torch's import. `root` is the folder of runs and caches."""
    with _Child("torch") as torch_child, _Child("packages") as package_child:
        machine = hardware.probe()
        findings = [
            *_guarded("Python", look_at_python),
            *_guarded("NVML", lambda: look_at_gpus(machine, nvidia_installed())),
            *_guarded("RAM", lambda: look_at_memory(machine)),
            *_guarded("disk", lambda: look_at_folder(root)),
            *_guarded("path", lambda: look_at_path(root, os.environ, windows_long_paths())),
            *_guarded("terminal", lambda: look_at_encoding(getattr(sys.stdout, "encoding", None))),
        ]
        answers, ending = torch_child.answers()
        findings += _guarded("PyTorch", lambda: look_at_torch(answers, ending, machine))
        findings += _guarded("compiler", lambda: look_at_compilers(answers))
        findings += _guarded("packages", lambda: look_at_packages(*package_child.answers()))
    return list(with_causes(findings))


def with_causes(findings: Iterable[Finding]) -> Iterator[Finding]:
    """After each problem, what its reason means, where that is known by name."""
    for finding in findings:
        yield finding
        reason = finding.params.get("reason") if finding.level == "problem" else None
        cause = failures.of_exception(str(reason)) if reason else None
        if cause is not None and cause.code.startswith("failure."):
            yield note(cause.code, **cause.params)


def _guarded(check: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(look())
    except Exception as error:  # noqa: BLE001 - on a broken machine anything can fail; the rest is still told
        return [note("doctor.check_failed", check=check, reason=f"{type(error).__name__}: {error}".rstrip("."))]


def launcher() -> str:
    """What people type to start Traindeck."""
    return "train_gpu.bat" if WINDOWS else "./train_gpu.sh"


# --- Python and packages ------------------------------------------------------------------------------


def look_at_python() -> list[Finding]:
    version, bits = platform.python_version(), struct.calcsize("P") * 8
    command = f"{launcher()} setup"
    found = [ok("doctor.python", version=version, bits=bits, path=sys.executable)]
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        found.append(problem("doctor.python_version", version=version, command=command))
    if bits != 64:
        found.append(problem("doctor.python_bits", bits=bits, command=command))
    if sys.prefix == sys.base_prefix:
        found.append(note("doctor.no_venv", launcher=launcher()))
    return found


def look_at_packages(answers: Answers, ending: str) -> list[Finding]:
    """From the answers of the child: one line of versions, and a problem for each package that fails."""
    command = f"{launcher()} setup"
    states = {answer["package"]: answer for answer in answers if "package" in answer}
    versions = [f"{name} {state['version']}" for name, state in states.items() if "version" in state]
    found = [ok("doctor.packages", versions=", ".join(versions))] if versions else []
    for name, state in states.items():
        if "version" not in state:
            reason = state.get("error") or ending
            found.append(problem("doctor.package_broken", name=name, reason=reason, command=command))
    if not states:
        found.append(note("doctor.check_failed", check="packages", reason=ending))
    return found


# --- GPU and torch ------------------------------------------------------------------------------------


def nvidia_installed() -> bool:
    """Whether an NVIDIA driver seems to be installed, whatever it answers."""
    return bool(shutil.which("nvidia-smi")) or Path("/dev/nvidiactl").exists()


def look_at_gpus(machine: Machine, installed: bool) -> list[Finding]:
    """Driver and cards, or why there are none."""
    found: list[Finding] = []
    if machine.driver and machine.driver_cuda:
        found.append(ok("doctor.driver", driver=machine.driver, driver_cuda=_dotted(machine.driver_cuda)))
    for gpu in machine.gpus:
        vram = _gib(gpu.vram_total or 0)
        about: dict[str, Value] = {"index": gpu.index, "name": gpu.name, "vram_gib": vram}
        if gpu.compute_capability is None:
            found.append(ok("doctor.gpu", **about))
        else:
            code = "doctor.gpu_bf16" if gpu.bf16 else "doctor.gpu_fp16"
            found.append(ok(code, **about, capability=_dotted(gpu.compute_capability)))
        if gpu.vram_total is not None and gpu.vram_total < 3.5 * _GIB:
            found.append(note("doctor.gpu_small", **about))
    if machine.no_gpu is not None:
        found.append(_no_gpu(machine, installed))
    return found


def _no_gpu(machine: Machine, installed: bool) -> Finding:
    reason = machine.no_gpu_detail
    match machine.no_gpu:
        case "no_devices":
            return note("doctor.no_devices")
        case "driver_mismatch":
            return problem("doctor.driver_restart", reason=reason)
        case "no_package":
            return problem("doctor.package_broken", name="nvidia-ml-py", reason=reason, command=f"{launcher()} setup")
        case "no_library" | "driver_not_loaded" if not installed:
            return Finding("note", "doctor.no_driver", {"command": f"{launcher()} setup"}, reason)
        case _:
            return problem("doctor.driver_broken", reason=reason)


def suggested_build(machine: Machine) -> str | None:
    """The torch build for this driver and its best card, as `setup --torch` calls it; None: none fits.

    A driver runs every CUDA of its major version:
    https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
    CUDA 13 builds start at compute capability 7.5, the CUDA 12.6 build ends at 9.0 (PyTorch's RELEASE.md).
    """
    best = max((gpu.compute_capability for gpu in machine.gpus if gpu.compute_capability), default=None)
    if machine.driver_cuda is None:
        return None
    if machine.driver_cuda >= (13, 0) and (best is None or best >= (7, 5)):
        return "cu130"
    if machine.driver_cuda >= (12, 0) and (best is None or best < (10, 0)):
        return "cu126"
    return None


def repair_command(machine: Machine) -> str:
    """The set-up command that installs the torch build for this machine."""
    return f"{launcher()} setup --torch {suggested_build(machine) or 'auto'}"


def look_at_torch(answers: Answers, ending: str, machine: Machine) -> list[Finding]:
    """From the answers of the child that imported torch."""
    said: dict[str, Any] = {}
    for answer in answers:
        said.update({key: value for key, value in answer.items() if key in ("version", "cuda", "hip", "init", "gpus")})
    if "version" not in said:
        return [_import_failure(answers[0] if answers else {}, ending, machine)]
    version, cuda = said["version"], said["cuda"]
    if said["hip"]:
        return [ok("doctor.torch_other", version=version, build=f"ROCm {said['hip']}")]
    if cuda is None:
        found = [ok("doctor.torch_cpu", version=version)]
        if machine.driver and machine.no_gpu != "no_devices":
            found.append(problem("doctor.torch_is_cpu", driver=machine.driver, command=repair_command(machine)))
        return found
    devices = [answer for answer in answers if "name" in answer]
    found = [ok("doctor.torch_cuda", version=version, cuda=cuda, gpus=sum(bool(each.get("right")) for each in devices))]
    if "gpus" not in said:
        found += _no_cuda(said, cuda, ending, machine)
    for device in devices:
        if not device.get("right"):
            reason = device.get("error") or "wrong result"
            command = repair_command(machine)
            found.append(problem("doctor.gpu_unusable", name=device["name"], reason=reason, command=command))
    if len(devices) < said.get("gpus", 0):  # it died or hung while computing
        name = f"cuda:{len(devices)}"
        found.append(problem("doctor.gpu_unusable", name=name, reason=ending, command=repair_command(machine)))
    return found


def _import_failure(answer: dict[str, Any], ending: str, machine: Machine) -> Finding:
    command = repair_command(machine)
    reason = str(answer.get("error") or ending)
    if answer.get("missing"):
        return problem("doctor.torch_missing", command=command)
    number = answer.get("winerror")
    if number in _LIBRARY_NOT_LOADED:
        return problem("doctor.vc_runtime", detail=reason, number=number, command=command)
    if ending == _TOO_SLOW:
        return problem("doctor.torch_slow", seconds=int(_CHILD_SECONDS))
    return problem("doctor.torch_broken", reason=reason, command=command)


def _no_cuda(said: dict[str, Any], cuda: str, ending: str, machine: Machine) -> list[Finding]:
    """Why a CUDA build finds no GPU. Without a driver that is as it must be."""
    if machine.driver is None:
        return []
    command = repair_command(machine)
    if machine.driver_cuda and int(cuda.partition(".")[0]) > machine.driver_cuda[0]:
        newest = _dotted(machine.driver_cuda)
        return [problem("doctor.driver_old", driver=machine.driver, driver_cuda=newest, cuda=cuda, command=command)]
    reason = str(said.get("init", {}).get("error") or ending)
    return [problem("doctor.cuda_unusable", cuda=cuda, reason=reason, command=command)]


def look_at_compilers(answers: Answers) -> list[Finding]:
    """What torch.compile would need. Nothing of it is needed for training."""
    compiler = find_compiler(os.environ)
    package = "Visual Studio Build Tools (C++)" if WINDOWS else "g++"
    found = [
        ok("doctor.compiler", path=compiler) if compiler else note("doctor.no_compiler", package=package),
    ]
    if any(answer.get("cuda") for answer in answers):
        if importlib.util.find_spec("triton"):
            found.append(ok("doctor.triton", version=_version_of("triton", "triton-windows")))
        else:
            package = "triton-windows" if WINDOWS else "triton"
            found.append(note("doctor.no_triton", package=package, python=sys.executable))
    return found


def find_compiler(environ: Mapping[str, str]) -> str | None:
    """The C++ compiler that torch would use: `CXX`, else the usual ones on the path."""
    names = ("cl", "clang-cl", "g++", "clang++") if WINDOWS else ("g++", "clang++", "c++")
    return next(filter(None, map(shutil.which, filter(None, (environ.get("CXX", ""), *names)))), None)


def _version_of(*packages: str) -> str:
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "?"


# --- memory, disk, path, terminal ------------------------------------------------------------------------


def look_at_memory(machine: Machine, page_file: int | None = None) -> list[Finding]:
    """Processor, RAM, and on Windows (or where `page_file` gives its bytes) the page file."""
    sizes: dict[str, Value] = {"total_gib": _gib(machine.ram_total), "free_gib": _gib(machine.ram_available)}
    low = machine.ram_total < 7.5 * _GIB or machine.ram_available < 2 * _GIB
    found = [
        ok("doctor.cpu", name=machine.cpu_name, cores=machine.cpu_cores, threads=machine.cpu_threads),
        note("doctor.ram_low", **sizes) if low else ok("doctor.ram", **sizes),
    ]
    if WINDOWS and page_file is None:
        with contextlib.suppress(OSError, RuntimeError):  # where performance counters are turned off
            page_file = psutil.swap_memory().total
    if page_file is not None:
        small = page_file < 4 * _GIB
        found.append((note if small else ok)("doctor.page_file" + "_small" * small, gib=_gib(page_file)))
    return found


def look_at_folder(root: Path) -> list[Finding]:
    """Whether runs can be written, and how much fits."""
    existing = root
    while not existing.is_dir() and existing != existing.parent:
        existing = existing.parent
    trial = existing / f".traindeck-{secrets.token_hex(4)}.tmp"
    try:
        trial.write_bytes(b"x")
        files.retry_sharing(trial.unlink)
    except OSError as error:
        return [problem("doctor.not_writable", detail=str(error), path=str(root), reason=error.strerror or "?")]
    free = files.free_bytes(root)
    where: dict[str, Value] = {"path": str(root), "free_gib": _gib(free)}
    if free < 2 * _GIB:
        return [Finding("problem", "doctor.disk_low", where)]
    return [note("doctor.disk_low", **where) if free < 10 * _GIB else ok("doctor.disk", **where)]


_ROOM_BELOW: Final = 170  # the longest path of ours below the home folder, with a long run name


def look_at_path(root: Path, environ: Mapping[str, str], long_paths: bool) -> list[Finding]:
    """Folders that make trouble on Windows: too long, or synchronised."""
    found: list[Finding] = []
    if not long_paths and len(str(root)) > 260 - _ROOM_BELOW:
        found.append(note("doctor.long_paths", path=str(root), length=len(str(root))))
    if service := synchronised_by(root, environ):
        found.append(note("doctor.synced_folder", path=str(root), service=service))
    return found


def synchronised_by(root: Path, environ: Mapping[str, str]) -> str | None:
    """The service that synchronises a folder, by its environment variables or the folder's usual name."""
    for name in ("OneDrive", "OneDriveCommercial", "OneDriveConsumer"):
        if environ.get(name) and root.is_relative_to(Path(environ[name])):
            return "OneDrive"
    services = ("OneDrive", "Dropbox", "Google Drive", "iCloudDrive", "Nutstore", "坚果云", "WPS云盘")
    parts = [part.lower() for part in root.parts]
    return next((name for name in services if any(part.startswith(name.lower()) for part in parts)), None)


def windows_long_paths() -> bool:
    """Whether paths may be longer than 260 characters; always so elsewhere than on Windows."""
    if sys.platform == "win32":
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SYSTEM\CurrentControlSet\Control\FileSystem") as key:
                return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])
        except OSError:
            return False
    else:
        return True


def look_at_encoding(encoding: str | None) -> list[Finding]:
    """Whether the terminal shows Chinese and symbols. None: there is no terminal."""
    if encoding is None:
        return []
    try:
        "数据 → é ✓".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return [note("doctor.encoding_poor", encoding=encoding, launcher=launcher())]
    return [ok("doctor.encoding", encoding=encoding)]


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f}"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


# --- the child processes -------------------------------------------------------------------------------

_TOO_SLOW: Final = "timeout"


class _Child:
    """doctor_child.py at work on one subject."""

    def __init__(self, subject: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainer_core.machine.doctor_child", subject],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=children.environment(PYTHONIOENCODING="utf-8", QT_QPA_PLATFORM="offscreen"),
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def answers(self) -> tuple[Answers, str]:
        """All that it said, and how it ended (technical)."""
        try:
            out, err = self._process.communicate(timeout=_CHILD_SECONDS)
            last = err.decode("utf-8", "replace").strip().splitlines()[-1:]
            died = failures.of_exit_code(self._process.returncode)
            status = died.detail if died is not None else self._process.returncode
            ending = f"exit code {status} {''.join(last)}".strip()
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, _ = self._process.communicate()
            ending = _TOO_SLOW
        lines = out.decode("utf-8", "replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")], ending


# --- words -----------------------------------------------------------------------------------------------


def render(findings: list[Finding], language: Language) -> str:
    """Aligned plain text, fit to be pasted into a report. What to do stands below each finding."""
    levels = {level: word(f"doctor.level_{level}", {}, language) for level in ("ok", "note", "problem")}
    width = max(map(len, levels.values()))
    lines = [word("doctor.title", {"version": __version__, "platform": platform.platform()}, language), ""]
    for finding in findings:
        what, do = what_and_do(finding.code, finding.params, language)
        lines.append(f"[{levels[finding.level]}]{' ' * (width - len(levels[finding.level]))} {what}")
        indent = " " * (_columns(levels["problem"]) + 3)
        lines += [indent + part for part in (do, finding.detail) if part]
    problems = sum(finding.level == "problem" for finding in findings)
    closing = (
        word("doctor.problems", {"count": problems}, language) if problems else word("doctor.all_well", {}, language)
    )
    return "\n".join([*lines, "", closing])


def _columns(text: str) -> int:
    """Columns on a terminal: Chinese characters take two."""
    return sum(1 + (character > "\u2e7f") for character in text)
