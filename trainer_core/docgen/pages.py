"""Builds docs/protocol.md, its JSON Schema, docs/knobs.md and docs/troubleshooting.md from the code and the texts.

`python -m trainer_core.docgen` writes them; a test checks that they are up to date. No torch, no Qt.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from trainer_core import config, error_codes, protocol, texts
from trainer_core.docgen.examples import COMMANDS, EVENTS
from trainer_core.knob_effects import format_effect
from trainer_core.messages import Language, codes, template
from trainer_core.messages.exit_codes import exit_code_of

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs"
_BASES: Final = (protocol.Event, protocol.Command)
_GENERATED_NOTICE: Final = "<!-- Made by `python -m trainer_core.docgen`; edit {source} instead. -->"


def render_pages() -> dict[str, str]:
    """Contents of all generated files, by name."""
    return {
        "protocol.md": protocol_page(),
        "protocol.schema.json": json.dumps(protocol_schema(), indent=1, ensure_ascii=False) + "\n",
        "knobs.md": knobs_page(),
        "troubleshooting.md": troubleshooting_page(),
    }


def write(folder: Path = FOLDER) -> None:
    """Write all generated files."""
    for name, text in render_pages().items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def _page(title: str, source: str, introduction: str, body: Iterable[str]) -> str:
    head = (f"# {title}", "", _GENERATED_NOTICE.format(source=source), "", introduction)
    return "\n".join((*head, *body)).rstrip() + "\n"


def _table(columns: str, rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A Markdown table with an empty line behind it. `columns`: titles separated by commas."""
    titles = columns.split(",")
    for row in (titles, ["---"] * len(titles), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


# --- docs/protocol.md --------------------------------------------------------------------------------

_PROTOCOL_INTRODUCTION: Final = """\
Version {version}. {summary}

Events go to stdout and are appended to `events.jsonl` in the run's folder; commands are read from stdin
with `--control stdin`. A minor version only adds fields, events and commands: ignore the ones you do not
know. A number that is not finite is sent as `null`. The JSON Schema is
[protocol.schema.json](protocol.schema.json): `#/$defs/AnyEvent` and `#/$defs/AnyCommand`.
"""


def protocol_page() -> str:
    """Every event and command with its fields and an example."""
    source = inspect.getsource(protocol)
    fields, events, commands = parse_fields(source), protocol.EVENT_TYPES, protocol.COMMAND_TYPES

    def section(kind: type[msgspec.Struct], heading: str) -> Iterator[str]:
        """Docstring, fields and example, without the fields that all events or all commands have."""
        yield from (heading, "", _unwrap(kind.__doc__), "")
        bases = (base for base in reversed(kind.__mro__) if base is kind or base not in _BASES)
        if shown := [field for base in bases for field in fields.get(base.__name__, ())]:
            yield from _table("field,type,default,meaning", shown)
        if (example := (EVENTS | COMMANDS).get(kind)) is not None:
            yield from ("```json", protocol.encode(example).decode("ascii").rstrip(), "```", "")
        elif kind in _BASES:
            name = kind.__name__.lower()
            yield from (f"`{'type' if name == 'event' else name}` names the kind of {name}.", "")

    body: list[str] = []
    for title, kinds in (("Event", events), ("Command", commands)):
        tags = (kind.__struct_config__.tag for kind in kinds)
        body += [f"{title}s: " + ", ".join(f"[{tag}](#{title.lower()}-{tag})" for tag in tags) + ".", ""]
    body += section(protocol.Event, "## Every event")
    for kind in events:
        body += section(kind, f"### Event: {kind.__struct_config__.tag}")
    body += ["## Parts of events", ""]
    for part in event_structs():
        body += section(part, f"### {part.__name__}")
    body += ["### Names used in types", "", *_type_aliases(source), ""]
    body += section(protocol.Command, "## Every command")
    for command in commands:
        body += section(command, f"### Command: {command.__struct_config__.tag}")
    summary = _unwrap(protocol.__doc__).partition(" Events go to")[0]
    introduction = _PROTOCOL_INTRODUCTION.format(version=".".join(map(str, protocol.VERSION)), summary=summary)
    return _page("The wire protocol", "trainer_core/protocol.py", introduction, body)


def event_structs() -> list[type[msgspec.Struct]]:
    """Structs that are nested in events, in the order of protocol.py."""
    found = (kind for kind in vars(protocol).values() if inspect.isclass(kind) and issubclass(kind, msgspec.Struct))
    return [kind for kind in found if not issubclass(kind, _BASES) and kind.__module__ == protocol.__name__]


def parse_fields(source: str) -> dict[str, list[tuple[str, str, str, str]]]:
    """Name, type, default, and the comment behind it, of the annotated fields of every class in a source."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {one.start[0]: one.string.lstrip("# ").rstrip() for one in tokens if one.type == tokenize.COMMENT}
    return {
        node.name: [
            (
                f"`{ast.unparse(line.target)}`",
                f"`{_format_expression(line.annotation)}`",
                f"`{_format_expression(line.value)}`" if line.value else "required",
                comments.get(line.end_lineno or line.lineno, ""),
            )
            for line in node.body
            if isinstance(line, ast.AnnAssign)
        ]
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }


def _type_aliases(source: str) -> Iterator[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
            name = ast.unparse(node.targets[0])
            if not name.startswith(("Any", "_")):
                yield f"- `{name}`: `{_format_expression(node.value)}`"


def _format_expression(node: ast.expr) -> str:
    """Source of an expression; a constant of protocol.py is replaced by its value."""
    if isinstance(node, ast.Name) and node.id.isupper():
        return repr(getattr(protocol, node.id))
    return ast.unparse(node).replace("'", '"')


def _unwrap(docstring: str | None) -> str:
    return " ".join((docstring or "").split())


def protocol_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of events and commands. Unknown fields are allowed: newer minor versions may add some."""
    events, commands = protocol.EVENT_TYPES, protocol.COMMAND_TYPES
    references, components = msgspec.json.schema_components([*events, *commands], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Traindeck wire protocol {'.'.join(map(str, protocol.VERSION))}",
        "$ref": "#/$defs/AnyEvent",
        "$defs": {
            "AnyEvent": {"oneOf": list(references[: len(events)])},
            "AnyCommand": {"oneOf": list(references[len(events) :])},
            **components,
        },
    }


# --- docs/knobs.md -----------------------------------------------------------------------------------------

_KNOBS_INTRODUCTION: Final = """\
Each can be given as a flag, under the same name (with underscores) in a YAML file for `--config`, and in a
preset. Order: defaults, then the preset, then the file, then flags. `--no-NAME` turns a yes/no setting off; an empty
text (`--rewards ""`) replaces a list by an empty one. **Bold** settings are in the window's short form; the others
are under Advanced. The effect on memory and
speed (tokens a second) is that of a higher value, or of a switch that is on.
"""


def knobs_page() -> str:
    """Every setting by group: flag, default, allowed values, unit, help, effect on memory and speed."""
    body: list[str] = []
    for group in get_args(config.KnobGroup):
        rows = (_knob_row(knob) for knob in config.knobs().values() if knob.group == group)
        body += [f"## {group.capitalize()}", "", *_table("flag,default,allowed,unit,meaning,effect", rows)]
    return _page("All settings", "trainer_core/config.py and knob_effects.py", _KNOBS_INTRODUCTION, body)


def _knob_row(knob: config.Knob) -> Iterator[str]:
    yield f"**`{knob.flag}`**" if knob.main else f"`{knob.flag}`"
    default = str(knob.default).lower() if knob.kind == "bool" else knob.default
    yield "empty" if default in ("", []) else f"`{default}`"
    yield from (knob.allowed(), knob.unit, texts.get(f"knob.{knob.name}.help", "en"), format_effect(knob, "en"))


# --- docs/troubleshooting.md ---------------------------------------------------------------------------------

_OTHER_FAILURES: Final = ("memory.out", "device.failed", "disk.full")  # without the prefix "failure."
_TROUBLESHOOTING_INTRODUCTION: Final = """\
A run that fails ends with one sentence: what happened, where, and what to do. This page lists failures that come from
outside: the driver, the system, the disk, a library. `doctor` examines a machine; the end of `log.txt` in a run's
folder holds the details. Saved checkpoints are intact: `--resume` continues from the newest good one. Transient
failures restart the run from there automatically, up to `--restarts` times without progress in between.

运行失败时会用一句话说明：发生了什么、在哪里、该怎么办。下面列出来自外部（驱动、系统、磁盘、库）的故障。
`doctor` 可检查本机；运行文件夹中 `log.txt` 的末尾有详细信息。此前保存的内容完好：`--resume` 从最新的完好检查点继续。
可能自行消失的故障会从那里自动重新开始，没有进展时最多 `--restarts` 次。
"""


def troubleshooting_page() -> str:
    """Every failure and every piece of advice that has a message code, in English and Chinese."""
    body = ["## By exit code · 按退出代码", "", *_table("Windows,Linux,", _status_rows()), "## Failures · 故障", ""]
    for code in sorted((*codes("failure."), *_OTHER_FAILURES)):
        facts = " · ".join(_failure_facts(code))
        body += [f"### {code}", "", *([f"*{facts}*", ""] if facts else []), *_message(code)]
    body += ["## Advice during a run · 运行中的建议", ""]
    for code in codes("advice."):
        body += [f"### {code}", "", *_message(code)]
    source = "trainer_core/texts/ and trainer_core/error_codes.py"
    return _page("When something goes wrong · 出了问题时", source, _TROUBLESHOOTING_INTRODUCTION, body)


def _status_rows() -> Iterator[tuple[str, str, str]]:
    """Exit statuses of processes that ended with a failure, for each failure that has some."""
    windows, signals = error_codes.NTSTATUS_CODES, error_codes.SIGNALS
    for code in sorted({*windows.values(), *(name for _, name in signals.values())}):
        statuses = (_format_status(status) for status, name in windows.items() if name == code)
        numbers = (f"{signal} (`{128 + n}`)" for n, (signal, name) in signals.items() if name == code)
        yield ", ".join(statuses), ", ".join(numbers), f"[{code}](#{code.replace('.', '')})"


def _format_status(status: int) -> str:
    """Hexadecimal, and decimal with and without sign: programs show all three."""
    signed = f" or {status - 2**32}" if status >= 2**31 else ""
    return f"`0x{status:08X}` ({status}{signed})"


def _failure_facts(code: str) -> Iterator[str]:
    if code in error_codes.EXCEPTION_CODES:  # the others end the trainer before it can choose an exit code
        exit_code = exit_code_of(code)
        yield f"exit code {int(exit_code)} ({exit_code.name.lower()})"
    if code in error_codes.TRANSIENT_CODES:
        yield "restarts automatically · 自动重新开始"
    if numbers := sorted(number for number, name in error_codes.WINERROR_CODES.items() if name == code):
        yield f"WinError {', '.join(map(str, numbers))}"


def _message(code: str) -> Iterator[str]:
    """Description and action of a message in both languages, with parameters replaced by "…"."""
    for language in get_args(Language):
        text = ("" if language == "zh" else " ").join(template(code, language)).strip()
        yield from (re.sub(r"\{\w*(:[^}]*)?\}", "…", text), "")
