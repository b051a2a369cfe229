"""Judges of structured answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer_core.evaluation.judge import load_judge
from trainer_core.messages import TraindeckError


def schema_file(folder: Path, schema: object) -> str:
    path = folder / "模式 schema.json"
    path.write_text(json.dumps(schema), encoding="utf-8")
    return f"json-schema:{path}"


def test_a_pattern_accepts_answers_that_contain_a_match() -> None:
    judge = load_judge("regex:^[0-9]+: 是$")
    assert judge("17: 是")
    assert not judge("seventeen: 是")


def test_a_schema_accepts_json_documents_of_its_form(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["城市"], "properties": {"城市": {"type": "string"}}}
    judge = load_judge(schema_file(tmp_path, schema))
    assert judge(' {"城市": "北京"}\n')
    assert not judge('{"城市": 1}')
    assert not judge('{"city": "北京"}')
    assert not judge('Here it is: {"城市": "北京"}')
    assert not judge("[" * 100_000)


@pytest.mark.parametrize("judge", ["", "regex:", "regex:(", "json-schema:no such file.json", "length:3", "(.*)"])
def test_an_unusable_judge_is_refused_with_the_reason(judge: str) -> None:
    with pytest.raises(TraindeckError) as raised:
        load_judge(judge)
    assert raised.value.code == "evaluate.bad_judge"
    assert raised.value.params["reason"]


def test_an_invalid_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraindeckError) as raised:
        load_judge(schema_file(tmp_path, {"type": "text"}))
    assert "text" in str(raised.value.params["reason"])


def test_references_to_other_documents_are_not_downloaded(tmp_path: Path) -> None:
    with pytest.raises(TraindeckError) as raised:
        load_judge(schema_file(tmp_path, {"$ref": "http://127.0.0.1:9/schema.json"}))
    assert raised.value.code == "evaluate.bad_judge"
