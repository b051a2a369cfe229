"""Judges structured answers: `regex:PATTERN` or `json-schema:FILE`. No torch, no Qt."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainer_core.data.columns import without_reasoning
from trainer_core.messages import TraindeckError

if TYPE_CHECKING:
    import regex  # the window imports this module, and opens before it is installed

Judge = Callable[[str], bool]

TIME_LIMIT_S: Final = 1.0
"""For a match: some patterns take exponential time for answers that a model may give."""


def load_judge(text: str) -> Judge:
    """A function that accepts or rejects an answer, and raises `TimeoutError` if a pattern takes too long.

    `regex:PATTERN` accepts an answer that contains a match; `json-schema:FILE` accepts an answer that is a JSON
    document of this schema, without any other text but reasoning. Raises `evaluate.bad_judge`.
    """
    kind, _, value = text.partition(":")
    if kind == "regex" and value:
        pattern = compile_pattern(text, value)
        return lambda answer: pattern.search(answer, timeout=TIME_LIMIT_S) is not None
    if kind == "json-schema" and value:
        return _schema_judge(text, Path(value))
    raise TraindeckError("evaluate.bad_judge", judge=text, reason="it begins with neither regex: nor json-schema:")


def compile_pattern(judge: str, pattern: str) -> regex.Pattern[str]:
    """Raises `evaluate.bad_judge`."""
    import regex

    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError, MemoryError) as error:
        raise TraindeckError("evaluate.bad_judge", judge=judge, reason=str(error)) from error


def _schema_judge(text: str, path: Path) -> Judge:
    import jsonschema
    import referencing

    try:
        schema = json.loads(path.read_text(encoding="utf-8-sig"))
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
        _resolve_references(schema, kind.META_SCHEMA["$schema"])
    except (OSError, ValueError, RecursionError, jsonschema.SchemaError, referencing.exceptions.Unresolvable) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise TraindeckError("evaluate.bad_judge", judge=text, reason=reason) from error
    kind = jsonschema.validators.extend(kind, {"pattern": _check_pattern})
    validator = kind(schema, registry=referencing.Registry())  # the default registry would download references

    def accepts(answer: str) -> bool:
        try:
            document = json.loads(without_reasoning(answer), parse_constant=_refuse_constant)
            return bool(validator.is_valid(document))
        except (ValueError, RecursionError, OverflowError):  # OverflowError: `multipleOf` of a huge number
            return False

    return accepts


def _resolve_references(schema: Any, dialect: str) -> None:
    """Raises `referencing.exceptions.Unresolvable` now, rather than for the first answer that needs the reference."""
    import referencing.jsonschema

    root = referencing.jsonschema.specification_with(dialect).create_resource(schema)

    def check(resource: Any, resolver: Any) -> None:
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(resource.contents, dict) and isinstance(resource.contents.get(keyword), str):
                resolver.lookup(resource.contents[keyword])
        for part in resource.subresources():
            check(part, resolver.in_subresource(part))

    check(root, referencing.Registry().resolver_with_root(root))


def _check_pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    """The keyword `pattern` of a schema, with a time limit."""
    import jsonschema
    import regex

    if validator.is_type(instance, "string") and not regex.search(pattern, instance, timeout=TIME_LIMIT_S):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _refuse_constant(name: str) -> Any:
    """`NaN` and `Infinity` are not JSON."""
    raise ValueError(name)
