"""Writes docs/protocol.md, its schema, docs/knobs.md and docs/troubleshooting.md: `python -m trainer_core.reference`.

They are made from protocol.py, config.py and the catalogue: docstrings, the comments behind fields, types, defaults.
A test compares the files with what this makes, so they cannot go out of date. No torch, no Qt.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from trainer_core import config, files, protocol
from trainer_core.knob_effects import effect_words
from trainer_core.reference.examples import COMMANDS, EVENTS
from trainer_core.reference.troubleshooting import troubleshooting_page

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs"
_MADE: Final = "<!-- Made by `python -m trainer_core.reference`; edit {source} instead. -->"


def pages() -> dict[str, str]:
    """All generated files by name."""
    return {
        "protocol.md": protocol_page(),
        "protocol.schema.json": json.dumps(protocol_schema(), indent=1, ensure_ascii=False) + "\n",
        "knobs.md": knobs_page(),
        "troubleshooting.md": troubleshooting_page(_MADE.format(source="trainer_core/messages/ and failures.py")),
    }


def write(folder: Path = FOLDER) -> list[Path]:
    """Write the files that are not as they should be; returns their paths."""
    stale = {folder / name: text.encode("utf-8") for name, text in pages().items()}
    for path, content in list(stale.items()):
        if path.is_file() and path.read_bytes().replace(b"\r\n", b"\n") == content:
            del stale[path]
        else:
            files.write_atomic(path, content)
    return list(stale)


# --- docs/protocol.md --------------------------------------------------------------------------------


class Field(msgspec.Struct, frozen=True):
    """A field as it is written in the source."""

    name: str
    type: str
    default: str | None  # None: always sent and always needed
    meaning: str


def protocol_page() -> str:
    """The wire in words: every event and command with its fields and an example."""
    fields = fields_of(inspect.getsource(protocol))
    major, minor = protocol.VERSION
    lines = [
        "# The wire protocol",
        "",
        _MADE.format(source="trainer_core/protocol.py"),
        "",
        f"Version {major}.{minor}. {_paragraphs(protocol.__doc__)[0]}",
        "",
        "Events go to stdout and are appended to `events.jsonl` in the run's folder; commands are read from stdin",
        "with `--control stdin`. A minor version only adds fields, events and commands: ignore the ones you do not",
        "know. A number that is not finite is sent as `null`. The JSON Schema is",
        "[protocol.schema.json](protocol.schema.json): `#/$defs/AnyEvent` and `#/$defs/AnyCommand`.",
        "",
        *_contents("Events", (str(_tag(kind)) for kind in protocol.event_types()), "event"),
        *_contents("Commands", (str(_tag(kind)) for kind in protocol.command_types()), "command"),
        "## Every event",
        "",
        *_section(protocol.Event, fields, own_only=False),
        "`type` names the kind of event.",
        "",
        *_described(protocol.event_types(), fields, EVENTS, "Event"),
        "## Parts of events",
        "",
    ]
    for part in parts():
        lines += [f"### {part.__name__}", "", *_section(part, fields, own_only=False)]
    lines += ["### Names used in types", ""]
    lines += [f"- `{name}`: `{meaning}`" for name, meaning in _type_names(inspect.getsource(protocol))] + [""]
    lines += ["## Every command", "", *_section(protocol.Command, fields, own_only=False)]
    lines += ["`command` names the kind of command.", ""]
    lines += _described(protocol.command_types(), fields, COMMANDS, "Command")
    return "\n".join(lines).rstrip() + "\n"


def parts() -> list[type[msgspec.Struct]]:
    """The structs that events are made of, in the order of protocol.py."""
    found = [kind for kind in vars(protocol).values() if inspect.isclass(kind) and issubclass(kind, msgspec.Struct)]
    bases = (protocol.Event, protocol.Command)
    return [kind for kind in found if kind.__module__ == protocol.__name__ and not issubclass(kind, bases)]


def _contents(title: str, tags: Iterable[str], kind: str) -> list[str]:
    return [f"{title}: " + ", ".join(f"[{tag}](#{kind}-{tag})" for tag in tags) + ".", ""]


def _described(
    kinds: Iterable[type[msgspec.Struct]],
    fields: dict[str, list[Field]],
    examples: dict[type[Any], Any],
    title: str,
) -> Iterator[str]:
    for kind in kinds:
        yield from (f"### {title}: {_tag(kind)}", "", *_section(kind, fields, own_only=True))
        yield from ("```json", protocol.encode(examples[kind]).decode("ascii").rstrip(), "```", "")


def _section(kind: type[msgspec.Struct], fields: dict[str, list[Field]], own_only: bool) -> Iterator[str]:
    yield from (" ".join(_paragraphs(kind.__doc__)), "")
    shown = [field for base in reversed(_lineage(kind, own_only)) for field in fields[base.__name__]]
    if shown:
        yield from ("| field | type | default | meaning |", "| --- | --- | --- | --- |")
        for field in shown:
            default = "required" if field.default is None else f"`{field.default}`"
            yield f"| `{field.name}` | `{_cell(field.type)}` | {_cell(default)} | {_cell(field.meaning)} |"
        yield ""


def _lineage(kind: type, own_only: bool) -> list[type]:
    """The class and its bases that have fields; what all events or commands have is described once."""
    common = (protocol.Event, protocol.Command) if own_only else ()
    return [base for base in kind.__mro__ if base.__module__ == protocol.__name__ and base not in common]


def fields_of(source: str) -> dict[str, list[Field]]:
    """The annotated fields of every class in a source, with the comments behind or above them."""
    comments = {
        token.start[0]: token.string.lstrip("# ").rstrip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found: dict[str, list[Field]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = [
                Field(
                    name=ast.unparse(line.target),
                    type=_plain(line.annotation),
                    default=None if line.value is None else _plain(line.value),
                    meaning=comments.get(line.end_lineno or line.lineno, ""),
                )
                for line in node.body
                if isinstance(line, ast.AnnAssign)
            ]
    return found


def _type_names(source: str) -> Iterator[tuple[str, str]]:
    """Names that stand for a longer type (`PhaseName = Literal[…]`)."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
            name = ast.unparse(node.targets[0])
            if not name.startswith(("Any", "_")):
                yield name, _plain(node.value)


def _plain(node: ast.expr) -> str:
    """An expression as text; a constant of protocol.py by its value."""
    if isinstance(node, ast.Name) and node.id.isupper():
        return repr(getattr(protocol, node.id))
    return ast.unparse(node).replace("'", '"')


def _tag(kind: type[msgspec.Struct]) -> Any:
    return kind.__struct_config__.tag


def _paragraphs(docstring: str | None) -> list[str]:
    return [" ".join(part.split()) for part in inspect.cleandoc(docstring or "").split("\n\n")]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# --- docs/protocol.schema.json -------------------------------------------------------------------------


def protocol_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of events and commands. Unknown fields are allowed: newer minors may add some."""
    kinds = [*protocol.event_types(), *protocol.command_types()]
    references, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    count = len(protocol.event_types())
    major, minor = protocol.VERSION
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Traindeck wire protocol {major}.{minor}",
        "$ref": "#/$defs/AnyEvent",
        "$defs": {
            "AnyEvent": {"oneOf": list(references[:count])},
            "AnyCommand": {"oneOf": list(references[count:])},
            **components,
        },
    }


# --- docs/knobs.md -----------------------------------------------------------------------------------------


def knobs_page() -> str:
    """Every knob by group: flag, default, allowed values, unit, help, what it does to memory and speed."""
    lines = [
        "# All settings",
        "",
        _MADE.format(source="trainer_core/config.py and knob_effects.py"),
        "",
        "Each can be given as a flag, under the same name (with underscores) in a YAML file for `--config`, and in a",
        "preset. Order: defaults, then the preset, then the file, then flags. `--no-NAME` turns a yes/no setting off.",
        "**Bold** settings are in the window's short form; the others are under Advanced. The effect on memory and",
        "speed (tokens a second) is that of a higher value, or of a switch that is on.",
        "",
    ]
    for group in get_args(config.Group):
        lines += [f"## {group.capitalize()}", "", "| flag | default | allowed | unit | meaning | effect |"]
        lines.append("| --- | --- | --- | --- | --- | --- |")
        for knob in config.knobs().values():
            if knob.group == group:
                flag = f"**`{knob.flag}`**" if knob.main else f"`{knob.flag}`"
                cells = (flag, _default(knob), _cell(knob.allowed()), knob.unit, _cell(knob.help))
                lines.append(f"| {' | '.join(cells)} | {_cell(effect_words(knob, 'en'))} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _default(knob: config.Knob) -> str:
    if knob.default in ("", []):
        return "empty"
    return f"`{str(knob.default).lower() if knob.kind == 'bool' else knob.default}`"
