"""From what was chosen in the window to the arguments of `python -m trainer_core`, and to a line to copy.

Only what differs from the preset is said, so that the line stays short enough to read.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainer_core import config, presets
from trainer_core.config import Config, Layer
from trainer_core.presets import Preset

_PROGRAM: Final = ("python", "-m", "trainer_core")
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./\\:=+,@")
_NOT_A_FLAG: Final = frozenset({"preset", "data"})  # said in their own words


def resolved(preset: str, changed: Mapping[str, Any], data: Sequence[str] = ()) -> Config:
    """The configuration that a run would get. Raises `TraindeckError` as the trainer would."""
    layers = [presets.load(preset).layer()] if preset else []
    chosen = {**changed, "data": list(data)} if data else dict(changed)
    return config.resolve([*layers, Layer("form", chosen)])


def train(
    preset: str,
    changed: Mapping[str, Any],
    data: Sequence[str] = (),
    run_dir: str = "",
    *,
    loaded: Preset | None = None,
) -> list[str]:
    """`train --preset NAME …` for a new run. `changed`: knobs by name; those equal to the preset are left out.

    `loaded` saves reading the preset's file again. Raises `TraindeckError` for a value that no run takes.
    """
    arguments = ["train", *_configuration(preset, changed, data, loaded)]
    return arguments + (_flag("--run-dir", run_dir) if run_dir else [])


def preview(
    preset: str, changed: Mapping[str, Any], data: Sequence[str] = (), *, loaded: Preset | None = None
) -> list[str]:
    """`prepare --preview --preset NAME …`: a look at the data of what `train` would train on."""
    return ["prepare", "--preview", *_configuration(preset, changed, data, loaded)]


def check(
    preset: str, changed: Mapping[str, Any], data: Sequence[str] = (), *, loaded: Preset | None = None
) -> list[str]:
    """`check --preset NAME …`: real steps of what `train` would train, without a run."""
    return ["check", *_configuration(preset, changed, data, loaded)]


def _configuration(preset: str, changed: Mapping[str, Any], data: Sequence[str], loaded: Preset | None) -> list[str]:
    found = loaded or (presets.load(preset) if preset else None)
    base: Mapping[str, Any] = found.knobs if found else {}
    arguments = ["--preset", preset] if preset else []
    if data and list(data) != base.get("data"):
        for path in data:
            arguments += _flag("--data", path)
    for name, spec in config.knobs().items():
        if name not in changed or name in _NOT_A_FLAG:
            continue
        value = config.check_value(name, changed[name], "form")
        if value != base.get(name, spec.default):
            arguments += _knob_flag(spec, value)
    return arguments


def resume(run_dir: str) -> list[str]:
    """`train --resume RUN_DIR`: everything else is in the run's own configuration."""
    return ["train", "--resume", run_dir]


def _knob_flag(spec: config.Knob, value: Any) -> list[str]:
    if spec.kind == "bool":
        return [spec.flag if value else f"--no-{spec.flag.removeprefix('--')}"]
    if spec.kind == "list":
        return [part for item in value for part in _flag(spec.flag, item)]
    return _flag(spec.flag, repr(value) if spec.kind == "float" else str(value))


def _flag(flag: str, value: str) -> list[str]:
    """A value that looks like a flag needs the equals sign."""
    return [f"{flag}={value}"] if value.startswith("-") else [flag, value]


def shell_line(arguments: Sequence[str], *, windows: bool | None = None, program: Sequence[str] = _PROGRAM) -> str:
    """The whole command as a line to paste: for cmd.exe and PowerShell, or for a POSIX shell."""
    parts = [*program, *arguments]
    on_windows = os.name == "nt" if windows is None else windows
    return " ".join(map(_windows_quoted, parts)) if on_windows else shlex.join(parts)


def _windows_quoted(text: str) -> str:
    """Quoted by the rules of CommandLineToArgvW, whenever anything in it could mean something to a shell.

    `%NAME%` is replaced by cmd.exe even inside quotes and nothing prevents that at its prompt.
    """
    if text and _PLAIN.issuperset(text):
        return text
    quoted, backslashes = '"', 0
    for letter in text:
        if letter == "\\":
            backslashes += 1
            continue
        quoted += "\\" * (2 * backslashes + 1 if letter == '"' else backslashes) + letter
        backslashes = 0
    return quoted + "\\" * (2 * backslashes) + '"'
