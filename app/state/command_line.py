"""From what was chosen in the window to the arguments of `python -m trainer_core`, and to a line to copy.

Only what differs from the preset is said, so that the line stays short enough to read.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from trainer_core import config, presets
from trainer_core.config import Config, Layer
from trainer_core.presets import Preset

Shell = Literal["powershell", "cmd", "bash"]
SHELLS: Final[tuple[Shell, ...]] = ("powershell", "cmd") if sys.platform == "win32" else ("bash",)
"""Of this platform, the usual one first."""
_CODE: Final = Path(config.__file__).resolve().parent
_PATHS: Final = frozenset({"--data", "--validation-data", "--run-dir", "--tokenizer", "--cache-dir"})
_POWERSHELL_PLAIN: Final = re.compile(r"-{0,2}[A-Za-z][A-Za-z0-9_-]*|[0-9]+")  # it would take 1e3 or -a.b apart
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


def branch(checkpoint: str, run_dir: str) -> list[str]:
    """`train --resume CHECKPOINT --run-dir NEW`: a new run that goes on from a checkpoint of another."""
    return ["train", "--resume", checkpoint, "--run-dir", run_dir]


def generate(checkpoint: str, device: str) -> list[str]:
    """`generate CHECKPOINT --device …`: a model that writes on command."""
    return ["generate", checkpoint, "--device", device]


def _knob_flag(spec: config.Knob, value: Any) -> list[str]:
    if spec.kind == "bool":
        return [spec.flag if value else f"--no-{spec.flag.removeprefix('--')}"]
    if spec.kind == "list":
        return [part for item in value for part in _flag(spec.flag, item)]
    return _flag(spec.flag, repr(value) if spec.kind == "float" else str(value))


def _flag(flag: str, value: str) -> list[str]:
    """A value that looks like a flag needs the equals sign."""
    return [f"{flag}={value}"] if value.startswith("-") else [flag, value]


def for_terminal(arguments: Sequence[str], shell: Shell, *, python: str, home: Path) -> str:
    """The line that does the same in a terminal opened anywhere: all paths are whole, and no set-up is needed.

    `python` is the interpreter, `home` the folder that relative paths of the form start from.
    """
    parts, kind = list(arguments), ""
    for place, part in enumerate(parts):
        if kind in _PATHS and not part.startswith("builtin:"):
            parts[place] = str(home / part)
        flag, equals, value = part.partition("=")
        if equals and flag in _PATHS:
            parts[place] = f"{flag}={home / value}"
        kind = part
    # A folder with a __main__.py can be run; `-m` would need it to be the current one.
    return shell_line(parts, shell, program=[python, "-X", "utf8", str(_CODE)])


def shell_line(arguments: Sequence[str], shell: Shell, *, program: Sequence[str] = ("traindeck",)) -> str:
    """The whole command as a line to paste at the prompt of a shell.

    Tried with bash, and with the cmd.exe of Wine and Windows' own Python; PowerShell's by its documented rules only.
    """
    parts = [*program, *arguments]
    match shell:
        case "bash":
            return shlex.join(parts)
        case "cmd":
            return " ".join(map(_for_cmd, parts))
        case "powershell":
            return _for_powershell(parts)


def _for_cmd(text: str) -> str:
    """Quotes keep everything from cmd.exe but themselves and `%`; where there are any, each sign gets a caret."""
    quoted = _windows_quoted(text)
    return re.sub(r'[()%!^"<>&|]', r"^\g<0>", quoted) if '"' in text or "%" in text else quoted


def _for_powershell(parts: Sequence[str]) -> str:
    """In single quotes nothing has a meaning. But Windows PowerShell 5 passes `"`, nothing and a last backslash on
    wrongly: there, all is left to the program (`--%`), in which `%NAME%` of an existing variable is still replaced.
    """
    program, *rest = parts
    call = f"& {_single_quoted(program)}"
    if any(not part or '"' in part or (part.endswith("\\") and " " in part) for part in rest):
        return " ".join([call, "--%", *map(_windows_quoted, rest)])
    return " ".join([call, *(part if _POWERSHELL_PLAIN.fullmatch(part) else _single_quoted(part) for part in rest)])


def _single_quoted(text: str) -> str:
    return "'" + re.sub("['‘’‚‛]", r"\g<0>\g<0>", text) + "'"


def _windows_quoted(text: str) -> str:
    """Quoted by the rules of CommandLineToArgvW, whenever anything in it could mean something to a shell."""
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
