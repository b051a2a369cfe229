"""Imports torch and the other packages in a child process: `python -m …probe_process torch|packages`.

An import can crash a process (an unsupported processor instruction, a broken library) or hang it (a virus scanner). The
child writes each result at once as a line of JSON, so that the last line shows how far it got.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
from typing import Any, Final

from trainer_core import error_codes
from trainer_core.system import child_process
from trainer_core.system.doctor.finding import ProbeResults

TIMEOUT_S: Final = 60.0  # virus scanners delay the first import after an installation
TIMED_OUT: Final = "timeout"
_MODULES: Final = {  # module → package
    "numpy": "numpy",
    "tokenizers": "tokenizers",
    "safetensors": "safetensors",
    "pyarrow.parquet": "pyarrow",
    "msgspec": "msgspec",
    "yaml": "pyyaml",
    "click": "click",
    "rich": "rich",
    "psutil": "psutil",
    "pynvml": "nvidia-ml-py",
    "PySide6.QtWidgets": "PySide6-Essentials",
    "pyqtgraph": "pyqtgraph",
}


def run_probe(subject: str) -> tuple[ProbeResults, str]:
    """Probe `torch` or `packages` in a child process.

    Returns all results, and how the process ended (technical, not translated).
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "trainer_core.system.doctor.probe_process", subject],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env=child_process.environment(PYTHONIOENCODING="utf-8", QT_QPA_PLATFORM="offscreen"),
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        out = done.stdout
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        failure = error_codes.classify_exit_code(done.returncode)
        status = failure.detail if failure is not None else done.returncode
        ending = f"exit code {status} {''.join(last)}".strip()
    except subprocess.TimeoutExpired as error:
        out, ending = error.stdout or b"", TIMED_OUT
    lines = out.decode("utf-8", "replace").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")], ending


# --- in the child ------------------------------------------------------------------------------------------


def _emit(**result: Any) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def _describe_error(error: BaseException) -> dict[str, Any]:
    """First line of an exception, and its WinError number."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    in_text = re.search(r"WinError (\d+)", text)
    number = getattr(error, "winerror", None) or (int(in_text[1]) if in_text else None)
    return {"error": text.rstrip("."), "winerror": number}


def _probe_packages() -> None:
    for module, package in _MODULES.items():
        _emit(package=package)
        try:
            importlib.import_module(module)
            _emit(package=package, version=importlib.metadata.version(package))
        except Exception as error:  # noqa: BLE001 - an import can raise anything; that is the finding
            _emit(package=package, **_describe_error(error))


def _probe_torch() -> None:
    """Import torch, emit its build, and compute on each GPU."""
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as error:  # noqa: BLE001 - as above
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        _emit(missing=missing, **_describe_error(error))
        return
    _emit(version=str(torch.__version__), cuda=torch.version.cuda, hip=getattr(torch.version, "hip", None))
    if torch.version.cuda is None:
        return
    try:
        torch.cuda.init()
        _emit(gpus=torch.cuda.device_count())
    except Exception as error:  # noqa: BLE001 - as above
        _emit(init=_describe_error(error))
        return
    for index in range(torch.cuda.device_count()):
        try:
            ones = torch.ones(64, 64, device=f"cuda:{index}")
            right = bool((ones @ ones).sum().item() == 64**3)  # reveals missing kernels and libraries
            _emit(name=torch.cuda.get_device_name(index), right=right)
        except Exception as error:  # noqa: BLE001 - as above
            _emit(name=f"cuda:{index}", **_describe_error(error))


if __name__ == "__main__":
    {"torch": _probe_torch, "packages": _probe_packages}[sys.argv[1]]()
