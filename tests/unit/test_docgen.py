"""Generated reference: up to date and complete; the examples satisfy the schema."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest

from trainer_core import config, protocol
from trainer_core.docgen import pages
from trainer_core.docgen.examples import COMMANDS, EVENTS
from trainer_core.messages import codes

SCHEMA = pages.protocol_schema()


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the schema that rejects unknown fields."""
    closed = copy.deepcopy(schema)
    for part in closed["$defs"].values():
        if part.get("type") == "object":
            part["additionalProperties"] = False
    return closed


STRICT = strict(SCHEMA)
EVENT_VALIDATOR = jsonschema.Draft202012Validator(STRICT)
COMMAND_VALIDATOR = jsonschema.Draft202012Validator({**STRICT, "$ref": "#/$defs/AnyCommand"})


@pytest.mark.parametrize("name", pages.render_pages())
def test_the_committed_pages_are_up_to_date(name: str) -> None:
    path = pages.FOLDER / name
    committed = path.read_text(encoding="utf-8") if path.is_file() else ""
    assert committed == pages.render_pages()[name], "run: python -m trainer_core.docgen"


def test_every_event_and_command_has_an_example() -> None:
    assert list(EVENTS) == list(protocol.EVENT_TYPES)
    assert list(COMMANDS) == list(protocol.COMMAND_TYPES)


def test_the_schema_is_valid_and_allows_unknown_fields() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    event = {**json.loads(protocol.encode(EVENTS[protocol.Phase])), "new": 1}
    jsonschema.Draft202012Validator(SCHEMA).validate(event)
    assert not EVENT_VALIDATOR.is_valid(event)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_event_satisfies_the_strict_schema(kind: type[Any]) -> None:
    EVENT_VALIDATOR.validate(json.loads(protocol.encode(EVENTS[kind])))


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_every_command_satisfies_the_strict_schema(kind: type[Any]) -> None:
    COMMAND_VALIDATOR.validate(json.loads(protocol.encode(COMMANDS[kind])))


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_the_schema_requires_the_required_fields(kind: type[Any]) -> None:
    for name in kind.__struct_fields__:
        event = json.loads(protocol.encode(EVENTS[kind]))
        del event[name]
        required = name in {field.name for field in msgspec.structs.fields(kind) if field.required}
        assert EVENT_VALIDATOR.is_valid(event) != required


def test_the_schema_allows_null_for_non_finite_numbers() -> None:
    step = msgspec.structs.replace(EVENTS[protocol.Step], loss=float("nan"), grad_norm=float("inf"))
    EVENT_VALIDATOR.validate(json.loads(protocol.encode(step)))


def test_the_protocol_page_has_every_field_and_unique_headings() -> None:
    page = pages.protocol_page()
    for kind in (*protocol.EVENT_TYPES, *protocol.COMMAND_TYPES, *pages.event_structs()):
        for name in kind.__struct_fields__:
            assert f"| `{name}` |" in page
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert len(headings) == len(set(headings))


def test_every_field_of_the_protocol_is_documented() -> None:
    fields = pages.parse_fields(Path(protocol.__file__).read_text(encoding="utf-8"))
    assert [(kind, name) for kind, rows in fields.items() for name, _, _, meaning in rows if not meaning] == []


def test_trailing_comments_document_fields() -> None:
    source = 'class A(B):\n    """Doc."""\n\n    x: int | None = None  # what x is\n    y: dict[str, int] = {}\n'
    x, y = pages.parse_fields(source)["A"]
    assert x == ("`x`", "`int | None`", "`None`", "what x is")
    assert y[2:] == ("`{}`", "")


def test_the_settings_page_has_every_knob() -> None:
    page = pages.knobs_page()
    for knob in config.knobs().values():
        assert page.count(f"`{knob.flag}`") == 1


def test_every_page_is_written(tmp_path: Path) -> None:
    pages.write(tmp_path)
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == pages.render_pages()


def test_the_troubleshooting_page_has_every_failure_and_advice() -> None:
    page = pages.render_pages()["troubleshooting.md"]
    for code in (*codes("failure."), *codes("advice.")):
        assert page.count(f"\n### {code}\n") == 1, code
    assert "`0xC0000005` (3221225477 or -1073741819)" in page
    assert "{" not in page
