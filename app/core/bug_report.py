"""Bug report: a zip with versions, doctor output, logs, events and settings, without personal data.

    python -m app.core.bug_report OUT.zip [--run RUN_DIR] [--window-log FILE] [--settings FILE]

It runs in a process of its own, because masking takes a second. Names of data files are kept; texts written by a model
or a person are replaced by their length.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainer_core import __version__
from trainer_core.runs import run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import child_process, files
from trainer_core.system.redaction import Masker

_TAIL_BYTES: Final = 2 * 1024**2
_DOCTOR_TIMEOUT_S: Final = 180.0
_PACKAGES: Final = ("torch", "PySide6-Essentials", "pyqtgraph", "numpy", "msgspec", "tokenizers", "safetensors")


def iter_parts(
    run: Path | None, window_log: Path | None, settings: Path | None, masker: Masker
) -> Iterator[tuple[str, str]]:
    """Yields (name, masked text) of each part."""
    yield "versions.txt", masker.mask(versions())
    yield "doctor.txt", masker.mask(doctor())
    if run is not None:
        config = run_dir.read_yaml(RunDir(run).config)
        yield "run/config.json", json.dumps(masker.mask_value(config), ensure_ascii=False, indent=1, default=str)
        yield "run/events-tail.jsonl", masked_json_lines(read_tail(RunDir(run).events), masker)
        yield "run/log-tail.txt", masker.mask(read_tail(RunDir(run).log))
    if window_log is not None:
        yield "window.log", masker.mask(read_tail(window_log))
    if settings is not None:
        yield "settings.json", masked_json_lines("".join(read_tail(settings).splitlines()), masker)


def versions() -> str:
    """Versions of Traindeck, the system, Python and the main packages, without importing them."""
    lines = [
        f"traindeck {__version__}",
        f"system {platform.platform()}",
        f"python {platform.python_version()} ({platform.architecture()[0]})",
    ]
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            lines.append(f"{name} {importlib.metadata.version(name)}")
    return "\n".join(lines) + "\n"


def doctor() -> str:
    """Output of the `doctor` command, or why it failed."""
    command = [sys.executable, "-P", "-X", "utf8", "-m", "trainer_core", "doctor", "--output", "plain"]
    hidden = getattr(subprocess, "CREATE_NO_WINDOW", 0)  # on Windows, opens no console
    environment = child_process.environment(TRAINDECK_LANG="en")
    try:
        result = subprocess.run(
            command, capture_output=True, timeout=_DOCTOR_TIMEOUT_S, env=environment, creationflags=hidden, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"doctor failed: {error}\n"
    return (result.stdout + result.stderr).decode("utf-8", "replace")


def masked_json_lines(text: str, masker: Masker) -> str:
    """Mask one JSON object per line. Other lines are omitted, because they cannot be masked."""
    masked = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(value := json.loads(line), dict):
                masked.append(json.dumps(masker.mask_value(_strip_data_rows(value)), ensure_ascii=False) + "\n")
    return "".join(masked)


def _strip_data_rows(event: dict[str, Any]) -> dict[str, Any]:
    """Remove details of data errors, which may quote a row."""
    is_data_error = str(event.get("code", "")).startswith("data.")
    quoting = {"first_bad", "detail"} if is_data_error else {"first_bad"}
    return {name: "<left out>" if name in quoting and value else value for name, value in event.items()}


def read_tail(path: Path, max_bytes: int = _TAIL_BYTES) -> str:
    """Return the last whole lines of a file, up to `max_bytes`; empty if it does not exist."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            content = file.read(max_bytes)
    except OSError:
        return ""
    if size > max_bytes:
        content = content.partition(b"\n")[2]
    return content.decode("utf-8", "replace")


def main() -> int:
    """Write the report; on failure, exit with 1 and the reason on stderr."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    for name in ("--run", "--window-log", "--settings"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    parts = iter_parts(options.run, options.window_log, options.settings, Masker.for_this_machine())
    working = options.out.with_name(f".{options.out.name}.writing")
    try:
        with zipfile.ZipFile(working, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in parts:
                archive.writestr(name, text)
        files.replace(working, options.out)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        with contextlib.suppress(OSError):
            working.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
