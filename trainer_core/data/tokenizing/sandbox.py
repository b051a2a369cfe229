"""Runs a model's chat template: code from strangers, on plain strings, in Jinja's sandbox.

Set up as transformers does it (utils/chat_template_utils.py), so that both render the same.

No torch, no Qt.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.utils
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainer_core.data.tokenizing.chat import LONGEST, refused

T = TypeVar("T")

_LONGEST: Final = 1024 * 1024  # characters of a template; long ones have some 20,000
_MOST_WRITTEN: Final = 2 * LONGEST  # characters of a rendered conversation
_MOST_STEPS: Final = 5_000_000  # turns of a loop; about a second
_CALL: Final = 50  # steps for which a call of a macro, a block or a recursive loop counts
_STEP: Final = "a step"  # the name of a filter that no template can write


class Template:
    """A compiled template. `variables` are those that it asks for. Raises `data.chat_refused`.

    `now` is what it takes for the present: data that is prepared again must come out the same. A rendering
    is bounded in its steps and in what it writes, not in time: the same conversations are refused each time.
    What a single expression takes (a filter on a long list, say) is not bounded.
    """

    def __init__(self, source: str, now: datetime) -> None:
        if len(source) > _LONGEST:
            raise refused(f"it has {len(source)} characters")
        self._steps = 0  # of the present rendering
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters.update({"tojson": _to_json, _STEP: self._step})
        environment.globals.update(raise_exception=_raise, strftime_now=now.strftime, namespace=_namespace)
        try:
            self._template = environment.from_string(source)
            self.variables = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except Exception as error:  # also RecursionError, and whatever Jinja makes of odd input
            raise refused(_told(error)) from error

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None = None, **variables: Any) -> str:
        """Raises `data.chat_refused`, whatever the template raised."""
        self._steps, length, parts = 0, 0, list[str]()
        try:
            for part in self._template.generate(messages=list(messages), tools=tools, documents=None, **variables):
                parts.append(part)
                length += len(part)
                if length > _MOST_WRITTEN:
                    _raise(f"the chat template makes more than {_MOST_WRITTEN} characters of it")
        except Exception as error:
            raise refused(_told(error)) from error
        return "".join(parts)

    @jinja2.pass_context
    def _step(self, context: jinja2.runtime.Context, steps: int) -> bool:
        """Counts steps. With a context, for else Jinja would take it for a constant."""
        self._steps += steps
        if self._steps > _MOST_STEPS:
            _raise(f"the chat template has not come to an end after {_MOST_STEPS} steps")
        return True


def within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` gives. Raises `data.chat_refused` where that takes longer, as with a template that counts for
    ever; nothing can end its thread, but it does not keep the process."""
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name="chat-template", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise refused(f"it has not come to an end in {seconds:g} s")
    return results[0]


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, in which loops, macros and blocks count their steps, and there are no powers: those of
    large numbers take for ever, and nothing else runs in the meantime."""

    intercepted_binops = frozenset(("**",))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        raise jinja2.exceptions.SecurityError(f"a template may not use {operator}")

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(jinja2.nodes.For):
            loop.body.insert(0, _counted(_CALL if loop.recursive else 1, loop.lineno))
            if loop.test is not None:  # `if`: not all turns come to the body
                loop.test = jinja2.nodes.And(_steps(1), loop.test)
        for macro in tree.find_all(jinja2.nodes.Macro):
            macro.body.insert(0, _counted(_CALL, macro.lineno))
        for block in tree.find_all(jinja2.nodes.Block):
            block.body.insert(0, _counted(_CALL, block.lineno))
        return tree.set_environment(self)  # type: ignore[return-value]


def _counted(steps: int, line: int) -> jinja2.nodes.Node:
    return jinja2.nodes.ExprStmt(_steps(steps)).set_lineno(line)


def _steps(steps: int) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(jinja2.nodes.Const(steps), _STEP, [], [], None, None)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`, which some templates put around answers, renders what it holds."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Namespace(jinja2.utils.Namespace):
    """As Jinja's, without names that mean something to Python."""

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace may not hold {name!r}")
        super().__setitem__(name, value)


def _namespace(*given: Any, **named: Any) -> _Namespace:
    made = _Namespace()
    for name, value in dict(*given, **named).items():
        made[name] = value
    return made


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _told(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    place = f"line {error.lineno}: " if isinstance(error, jinja2.exceptions.TemplateSyntaxError) else ""
    return f"{place}{lines[0]}"[:200].rstrip(".")
