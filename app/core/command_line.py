"""Builds trainer command lines from the form: arguments of `python -m trainer_core`, and a line to copy.

Contains only what differs from the preset, so that it stays readable.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from app.core.settings import RemoteMachine
from trainer_core import config
from trainer_core.presets import Preset
from trainer_core.runs.run_dir import RunDir, read_remote

Shell = Literal["powershell", "cmd", "bash"]
SHELLS: Final[tuple[Shell, ...]] = ("powershell", "cmd") if sys.platform == "win32" else ("bash",)
"""Shells of this platform, the most common first."""
_TRAINER_PACKAGE: Final = Path(config.__file__).resolve().parent
_PATH_FLAGS: Final = frozenset(
    {"--data", "--validation-data", "--run-dir", "--base-model", "--tokenizer", "--cache-dir"}
)
_POWERSHELL_UNQUOTED: Final = re.compile(r"-{0,2}[A-Za-z][A-Za-z0-9_-]*|[0-9]+")  # PowerShell would split 1e3 or -a.b
_UNQUOTED: Final = re.compile(r"[A-Za-z0-9_./\\:=+,@-]+")
_NON_FLAG_KEYS: Final = frozenset({"preset", "data"})  # have their own flags


def train_arguments(
    preset: Preset | None, changes: Mapping[str, Any], data: Sequence[str] = (), run_dir: str = ""
) -> list[str]:
    """`train --preset NAME ...` for a new run. Raises `TraindeckError` for an invalid value."""
    arguments = ["train", *config_arguments(preset, changes, data)]
    return arguments + (_flag_arguments("--run-dir", run_dir) if run_dir else [])


def config_arguments(preset: Preset | None, changes: Mapping[str, Any], data: Sequence[str]) -> list[str]:
    """Arguments of a configuration. `changes`: knobs by name; those equal to the preset are omitted."""
    base: Mapping[str, Any] = preset.knobs if preset else {}
    arguments = ["--preset", preset.name] if preset else []
    if data and list(data) != base.get("data"):
        for path in data:
            arguments += _flag_arguments("--data", path)
    for name, spec in config.knobs().items():
        if name not in changes or name in _NON_FLAG_KEYS:
            continue
        value = config.check_value(name, changes[name], "form")
        if value != base.get(name, spec.default):
            arguments += _option_arguments(spec, value)
    return arguments


def remote_arguments(arguments: Sequence[str], machine: RemoteMachine | None) -> list[str]:
    """Arguments of `train` for another machine; None: this one."""
    if machine is None:
        return list(arguments)
    return ["remote", "train", machine.host, f"--folder={machine.folder}", *arguments[1:]]


def resume_arguments(run_dir: str) -> list[str]:
    """`train --resume RUN_DIR`: the run has its own configuration. The same for a run on another machine."""
    if read_remote(RunDir(Path(run_dir))) is not None:
        return ["remote", "resume", run_dir]
    return ["train", "--resume", run_dir]


def _option_arguments(spec: config.Knob, value: Any) -> list[str]:
    if spec.kind == "bool":
        return [spec.flag if value else f"--no-{spec.flag.removeprefix('--')}"]
    if spec.kind == "list":
        return [part for item in value or [""] for part in _flag_arguments(spec.flag, item)]
    return _flag_arguments(spec.flag, repr(value) if spec.kind == "float" else str(value))


def _flag_arguments(flag: str, value: str) -> list[str]:
    """Values that look like flags need an equals sign."""
    return [f"{flag}={value}"] if value.startswith("-") else [flag, value]


def terminal_command(arguments: Sequence[str], shell: Shell, *, python: str, base_folder: Path) -> str:
    """The same command for a terminal in any folder: absolute paths, no set-up required.

    `python` is the interpreter, `base_folder` the folder that relative paths start from.
    """
    parts, kind = list(arguments), ""
    for place, part in enumerate(parts):
        if kind in _PATH_FLAGS:
            parts[place] = _absolute_path(kind, part, base_folder)
        flag, equals, value = part.partition("=")
        if equals and flag in _PATH_FLAGS:
            parts[place] = f"{flag}={_absolute_path(flag, value, base_folder)}"
        kind = part
    # A folder with a __main__.py can be run from anywhere; `-m` requires the current folder.
    return join_for_shell(parts, shell, program=[python, "-X", "utf8", str(_TRAINER_PACKAGE)])


def _absolute_path(flag: str, value: str, base_folder: Path) -> str:
    path = base_folder / value
    is_name = flag == "--base-model" and not path.exists()  # of a run, or of a model of a hub
    return value if is_name or value.startswith("builtin:") else str(path)


def join_for_shell(arguments: Sequence[str], shell: Shell, *, program: Sequence[str]) -> str:
    """Join a command into a line for a shell.

    Tested with bash and with cmd.exe of Wine and Windows' own Python; PowerShell by its documented rules only.
    """
    match shell:
        case "bash":
            return shlex.join([*program, *arguments])
        case "cmd":
            return " ".join(map(_quote_for_cmd, [*program, *arguments]))
        case "powershell":
            return _join_for_powershell(program[0], [*program[1:], *arguments])


def _quote_for_cmd(text: str) -> str:
    """Quotes protect everything from cmd.exe except quotes and `%`; with these, special characters get a caret."""
    quoted = _quote_for_windows(text)
    return re.sub(r'[()%!^"<>&|]', r"^\g<0>", quoted) if '"' in text or "%" in text else quoted


def _join_for_powershell(program: str, arguments: Sequence[str]) -> str:
    """Single quotes protect everything. But Windows PowerShell 5 passes `"`, empty arguments and a trailing backslash
    wrongly: for these, `--%` passes the rest verbatim, in which `%NAME%` of an existing variable is still replaced.
    """
    if any(not part or '"' in part or (part.endswith("\\") and " " in part) for part in arguments):
        parts = ["--%", *map(_quote_for_windows, arguments)]
    else:
        parts = [part if _POWERSHELL_UNQUOTED.fullmatch(part) else _quote_single(part) for part in arguments]
    return " ".join(["&", _quote_single(program), *parts])


def _quote_single(text: str) -> str:
    return "'" + re.sub("['‘’‚‛]", r"\g<0>\g<0>", text) + "'"


def _quote_for_windows(text: str) -> str:
    """Quote by the rules of CommandLineToArgvW, if anything could have a meaning for a shell."""
    if _UNQUOTED.fullmatch(text):
        return text
    # Only a space makes list2cmdline quote an argument; it doubles the backslashes before the closing quote.
    return subprocess.list2cmdline([f" {text}"]).replace('" ', '"', 1)
