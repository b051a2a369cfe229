"""A bundle for a bug report: what one needs to understand a failure, and nothing that is the person's own.

`python -m app.state.bundle OUT.zip [--run RUN_DIR] [--window-log FILE] [--settings FILE]` makes it, in a process of its
own (the doctor imports torch, masking takes a second). Names of data files stay; what is in them never gets in: texts
that a model or a person wrote are replaced by their length.
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

import yaml

from app.state.masking import Masker
from trainer_core import __version__, children

EVENTS_TAIL: Final = 2 * 1024**2  # bytes
LOG_TAIL: Final = 512 * 1024
_DOCTOR_S: Final = 180.0
_PACKAGES: Final = ("torch", "PySide6-Essentials", "pyqtgraph", "numpy", "msgspec", "tokenizers", "safetensors")
_LARGEST: Final = 4 * 1024**2  # bytes of a file that is read whole


def parts(
    run: Path | None, window_log: Path | None, settings: Path | None, masker: Masker
) -> Iterator[tuple[str, str]]:
    """(name, text) of everything that goes in, masked. What is not there is left out."""
    yield "versions.txt", masker.mask(versions())
    yield "doctor.txt", masker.mask(doctor())
    if run is not None:
        yield from _named("run/config.yaml", _yaml(run / "config.yaml", masker))
        yield from _named("run/events-tail.jsonl", events(run / "events.jsonl", masker))
        yield from _named("run/log-tail.txt", _masked(tail(run / "log.txt", LOG_TAIL), masker))
    if window_log is not None:
        yield from _named("window.log", _masked(tail(window_log, LOG_TAIL), masker))
    if settings is not None:
        yield from _named("settings.json", _json(settings, masker))


def write(path: Path, run: Path | None, window_log: Path | None, settings: Path | None, masker: Masker) -> None:
    """Write the zip. Raises OSError."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts(run, window_log, settings, masker):
            archive.writestr(name, text)


def versions() -> str:
    """Of Traindeck, the system, Python and what it is built on, without importing any of it."""
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
    """What the `doctor` command says, or why it could not."""
    command = [sys.executable, "-P", "-X", "utf8", "-m", "trainer_core", "doctor", "--output", "plain"]
    hidden = getattr(subprocess, "CREATE_NO_WINDOW", 0)  # of Windows: no console flashes up
    environment = children.environment(TRAINDECK_LANG="en")
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_DOCTOR_S, env=environment, creationflags=hidden, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"The doctor could not be asked: {error}\n"
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def events(path: Path, masker: Masker) -> str:
    """The last events, one JSON object a line. A line that is none is left out: it could hold anything."""
    kept = []
    for line in tail(path, EVENTS_TAIL).splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            kept.append(json.dumps(masker.mask_value(_without_rows(event)), ensure_ascii=False))
    return "\n".join(kept) + "\n" if kept else ""


def _without_rows(event: dict[str, Any]) -> dict[str, Any]:
    """Of complaints about the data only the code and the names: a reader's own words may cite a row."""
    if str(event.get("code", "")).startswith("data.") and event.get("detail"):
        event = {**event, "detail": "<left out>"}
    if event.get("first_bad"):
        event = {**event, "first_bad": "<left out>"}
    return event


def tail(path: Path, most: int) -> str:
    """The last whole lines of a file, at most `most` bytes; empty where there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most))
            content = file.read(most)
    except OSError:
        return ""
    if size > most:
        content = content.partition(b"\n")[2]
    return content.decode("utf-8", "replace")


def _masked(text: str, masker: Masker) -> str:
    return masker.mask(text)


def _named(name: str, text: str) -> Iterator[tuple[str, str]]:
    if text:
        yield name, text


def _yaml(path: Path, masker: Masker) -> str:
    try:
        value = yaml.safe_load(tail(path, _LARGEST))
    except (yaml.YAMLError, RecursionError):
        return ""
    masked = masker.mask_value(value)
    return yaml.safe_dump(masked, allow_unicode=True, sort_keys=False) if isinstance(masked, dict) else ""


def _json(path: Path, masker: Masker) -> str:
    try:
        value = json.loads(tail(path, _LARGEST))
    except (ValueError, RecursionError):
        return ""
    return json.dumps(masker.mask_value(value), ensure_ascii=False, indent=1)


def main() -> int:
    """Make the bundle; the exit code says whether it is there, stderr why not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    for name in ("--run", "--window-log", "--settings"):
        parser.add_argument(name, type=Path)
    chosen = parser.parse_args()
    try:
        write(chosen.out, chosen.run, chosen.window_log, chosen.settings, Masker.of_this_machine())
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
