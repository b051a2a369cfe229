"""Renders a model's chat template, which is untrusted code, in Jinja's sandbox.

Configured as in transformers (utils/chat_template_utils.py), so that both render the same text.

No torch, no Qt.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import jinja2.ext
import jinja2.parser
import jinja2.runtime
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainer_core.data.tokenizing.conversations import MAX_CONVERSATION_CHARS, chat_refused_error

_MAX_TEMPLATE_CHARS: Final = 1024 * 1024  # long templates have about 20,000
_MAX_OUTPUT_CHARS: Final = 2 * MAX_CONVERSATION_CHARS
_MAX_STEPS: Final = 5_000_000  # loop iterations; about one second
_CALL_COST: Final = 50  # steps per call of a macro, a block or a recursive loop
_STEP_FILTER: Final = "a step"  # the name of a filter that no template can write
GENERATION_START: Final = "\U0010fffd"  # private use: written before and after a generation block
GENERATION_STOP: Final = "\U0010fffc"


class SandboxedTemplate:
    """A compiled template. Raises `data.chat_refused`.

    `now` is the template's current time, so that data prepared again is the same. A rendering is limited in steps and
    output, not in time: the same conversations are refused each time. A single expression is not limited.
    """

    def __init__(self, source: str, now: datetime) -> None:
        if len(source) > _MAX_TEMPLATE_CHARS:
            raise chat_refused_error(f"it has {len(source)} characters")
        self._steps = 0  # of the present rendering
        environment = _BoundedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationExtension, jinja2.ext.loopcontrols]
        )
        environment.filters.update({"tojson": _to_json, _STEP_FILTER: self._count_steps})
        environment.globals.update(raise_exception=_raise_template_error, strftime_now=now.strftime)
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # also RecursionError, and whatever Jinja makes of odd input
            raise chat_refused_error(_format_error(error)) from error

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None = None, **variables: Any) -> str:
        """Raises `data.chat_refused` for any error of the template."""
        self._steps, length, parts = 0, 0, list[str]()
        try:
            for part in self._template.generate(messages=list(messages), tools=tools, documents=None, **variables):
                parts.append(part)
                length += len(part)
                if length > _MAX_OUTPUT_CHARS:
                    _raise_template_error(f"the chat template makes more than {_MAX_OUTPUT_CHARS} characters of it")
        except Exception as error:
            raise chat_refused_error(_format_error(error)) from error
        return "".join(parts)

    @jinja2.pass_context  # else Jinja would evaluate the filter at compile time
    def _count_steps(self, context: jinja2.runtime.Context, steps: int) -> bool:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            _raise_template_error(f"the chat template has not come to an end after {_MAX_STEPS} steps")
        return True


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which loops, macros and blocks count steps. There is no power operator: with large numbers it
    does not end and holds the GIL."""

    intercepted_binops = frozenset(("**",))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        raise SecurityError(f"a template may not use {operator}")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all((nodes.For, nodes.Macro, nodes.Block)):
            assert isinstance(node, (nodes.For, nodes.Macro, nodes.Block))
            cost = 1 if isinstance(node, nodes.For) and not node.recursive else _CALL_COST
            step = nodes.Filter(nodes.Const(cost), _STEP_FILTER, [], [], None, None)
            node.body.insert(0, nodes.ExprStmt(step).set_lineno(node.lineno))
            if isinstance(node, nodes.For) and node.test is not None:  # some iterations skip the body
                node.test = nodes.And(step, node.test)
        return tree.set_environment(self)  # type: ignore[return-value]


class _GenerationExtension(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`, which some templates put around answers: delimits what it holds."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True))
        start, stop = (nodes.Output([nodes.TemplateData(mark)]) for mark in (GENERATION_START, GENERATION_STOP))
        return [node.set_lineno(line) for node in (start, body, stop)]


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_template_error(message: str) -> None:
    raise TemplateError(message)


def _format_error(error: Exception) -> str:
    """An error message of one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    place = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
    return f"{place}{lines[0]}"[:200].rstrip(".")
