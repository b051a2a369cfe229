"""Judges structured answers: `regex:PATTERN` or `json-schema:FILE`. No torch, no Qt."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer_core.data.columns import without_reasoning
from trainer_core.messages import TraindeckError

Judge = Callable[[str], bool]


def load_judge(text: str) -> Judge:
    """A function that accepts or rejects an answer.

    `regex:PATTERN` accepts an answer that contains a match; `json-schema:FILE` accepts an answer that is a JSON
    document of this schema, without any other text but reasoning. Raises `evaluate.bad_judge`.
    """
    kind, _, value = text.partition(":")
    if kind == "regex" and value:
        try:
            pattern = re.compile(value)
        except (re.error, RecursionError) as error:
            raise TraindeckError("evaluate.bad_judge", judge=text, reason=str(error)) from error
        return lambda answer: pattern.search(answer) is not None
    if kind == "json-schema" and value:
        return _schema_judge(text, Path(value))
    raise TraindeckError("evaluate.bad_judge", judge=text, reason="it begins with neither regex: nor json-schema:")


def _schema_judge(text: str, path: Path) -> Judge:
    import jsonschema
    import referencing

    try:
        schema = json.loads(path.read_text(encoding="utf-8-sig"))
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        kind.check_schema(schema)
    except (OSError, ValueError, RecursionError, jsonschema.SchemaError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise TraindeckError("evaluate.bad_judge", judge=text, reason=reason) from error
    validator = kind(schema, registry=referencing.Registry())  # the default registry would download references

    def accepts(answer: str) -> bool:
        try:
            document: Any = json.loads(without_reasoning(answer))
            return bool(validator.is_valid(document))
        except (ValueError, RecursionError):
            return False
        except referencing.exceptions.Unresolvable as error:
            raise TraindeckError("evaluate.bad_judge", judge=text, reason=str(error)) from error

    return accepts
