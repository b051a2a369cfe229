"""Rewards of answers as settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer_core.evaluation import judge
from trainer_core.messages import TraindeckError
from trainer_core.rewards import functions
from trainer_core.rewards.functions import FUNCTIONS, Answer
from trainer_core.rewards.rewards import load_rewards
from trainer_core.rewards.setting import KINDS


def score(setting: str, text: str, reference: str = "", finish_reason: str = "end") -> float:
    [found] = load_rewards([setting]).scores(Answer(text, reference, finish_reason))
    return found


@pytest.mark.parametrize(
    ("setting", "text", "reference", "expected"),
    [
        ("exact", " 北京\n", "北京", 1),
        ("exact", "北京。", "北京", 0),
        ("contains", "The answer is 42.", " 42 ", 1),
        ("contains", "The answer is 41.", "42", 0),
        ("chrf", "200", " 200\n", 1),
        ("chrf", "201", "200", (2 / 3 + 1 / 2 + 0) / 3),  # characters, pairs, triples in common
        ("chrf", "<think>\n200\n</think>\n\n", "200", 0),
        ("chrf", "", "200", 0),
        ("number", "6 * 7 = 42", "#### 42.0", 1),
        ("number", "1,234.50 yuan", "1234.5", 1),
        ("number", "2024-02-29", "29", 1),
        ("number", "It is -3", "3", 0),
        ("number", "none", "3", 0),
        ("number", "about .5", "0.5", 1),
        ("number", "1.5e-3", "0.0015", 1),
        ("number", "v1.2.5", "0.5", 0),
        ("number", "9" * 400, "8" * 400, 0),
        ("number", "1e9999", "2e9999", 0),
        ("number", "答案是-5", "-5", 1),
        ("number", "温度−3℃", "-3", 1),
        ("number", "3-5", "5", 1),
        ("number", "x = 3,4,5", "5", 1),
        ("number", "结果为-1,234.5元", "-1234.5", 1),
        ("number", "<think>\n7</think>\n\nnone", "7", 0),
        ("exact", "<think>\nLet me see.\n</think>\n\n27", "<think>\n\n</think>\n\n27", 1),
        ("contains", "<think>27?</think>It is 28", "<think>\n\n</think>\n\n28", 1),
        ("contains", "<think>27?</think>It is 28", "27", 0),
        ("regex:<think>", "<think>27?</think>It is 28", "", 1),
        ("number:0.5", "3.4", "3", 1),
        ("number:0.5", "3.6", "3", 0),
        ("regex:是|否", "答案：是", "", 1),
        ("regex:^是$", "答案：是", "", 0),
        (r"format:\d{4}-\d\d|never", "\n2024-02 ", "", 1),
        (r"format:\d{4}-\d\d|never", "2024-02-29", "", 0),
        ("format:(?s)a.b", "a\nb", "", 1),
        ("length:2-4", "三个字", "", 1),
        ("length:4-", "ab", "", 0.5),
        ("length:-4", "abcdefgh", "", 0.5),
        ("length:-4", "", "", 1),
        ("language:zh", "今天是 Monday。", "", 3 / 9),
        ("language:en", "It is 3.", "", 1),
        ("language:ja", "今日はいい天気", "", 1),
        ("language:zh", "今日はいい天気", "", 4 / 7),
        ("language:zh", "123", "", 0),
    ],
)
def test_an_answer_has_a_score_from_0_to_1(setting: str, text: str, reference: str, expected: float) -> None:
    assert score(setting, text, reference) == pytest.approx(expected)


def test_a_json_document_of_the_schema_is_rewarded(tmp_path: Path) -> None:
    path = tmp_path / "模式 schema.json"
    path.write_text(json.dumps({"type": "object", "required": ["城市"]}), encoding="utf-8")
    assert score(f"json-schema:{path}", '{"城市": "北京"}') == 1
    assert score(f"json-schema:{path}", '{"city": "北京"}') == 0
    path.write_text(json.dumps({"type": "number", "multipleOf": 0.5}), encoding="utf-8")
    answers = ("2.5", "2.6", "1e400", "9" * 400, "NaN", "-Infinity")
    assert [score(f"json-schema:{path}", answer) for answer in answers] == [1, 0, 0, 0, 0, 0]


def test_an_answer_that_was_cut_off_is_not_right() -> None:
    for setting in ("exact", "number", "format:.*"):
        assert (score(setting, "42", "42"), score(setting, "42", "42", "limit")) == (1, 0)
    assert score("regex:4", "42", "", "limit") == 1


def test_the_reward_is_the_weighted_sum() -> None:
    rewards = load_rewards(["2*exact", "-0.5 * regex:sorry", "length:-100"])
    assert rewards.names == ["exact", "regex:sorry", "length:-100"]
    scores = rewards.scores(Answer("sorry", "sorry", "end"))
    assert scores == [1, 1, 1]
    assert rewards.total(scores) == 2.5
    assert rewards.needs_reference
    assert not load_rewards(["length:-100"]).needs_reference


@pytest.mark.parametrize(
    "setting",
    ["exact:1", "number:x", "number:-1", "number:nan", "length:", "length:-", "length:3", "length:5-2",
     "language:klingon", "language", "regex", "format:", "json-schema:", f"{'9' * 400}*exact"],
)  # fmt: skip
def test_an_impossible_value_is_refused(setting: str) -> None:
    with pytest.raises(TraindeckError) as raised:
        load_rewards([setting])
    assert raised.value.code == "config.bad_reward_value"


@pytest.mark.parametrize("setting", ["", "correct", "2*", "x*exact", "exact*2"])
def test_an_unknown_reward_is_refused(setting: str) -> None:
    with pytest.raises(TraindeckError) as raised:
        load_rewards([setting])
    assert raised.value.code == "config.unknown_reward"


def test_the_names_of_settings_are_those_of_the_functions() -> None:
    assert set(KINDS) == FUNCTIONS.keys()


@pytest.mark.parametrize("reference", ["#/$defs/missing", "https://example.com/schema.json", "other.json"])
def test_a_schema_is_refused_at_once_if_a_reference_leads_nowhere(tmp_path: Path, reference: str) -> None:
    schema = {"anyOf": [{"type": "number"}, {"properties": {"city": {"$ref": reference}}}]}
    (tmp_path / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
    with pytest.raises(TraindeckError) as raised:
        load_rewards([f"json-schema:{tmp_path / 'schema.json'}"])
    assert (raised.value.code, reference in str(raised.value.params["reason"])) == ("config.bad_reward", True)


def test_references_within_a_schema_are_followed(tmp_path: Path) -> None:
    part = {
        "$id": "https://example.com/part",
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"type": "null"}},
    }
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, part]}}}
    (tmp_path / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
    answers = ('[{"n": null}, []]', '[{"n": 1}]')
    assert [score(f"json-schema:{tmp_path / 'schema.json'}", answer) for answer in answers] == [1, 0]


@pytest.mark.parametrize("kind", ["regex", "format", "json-schema"])
def test_a_pattern_that_takes_too_long_scores_0_and_is_named(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (judge, functions):
        monkeypatch.setattr(module, "TIME_LIMIT_S", 0.1)
    value, text = "(a|aa)+$", "a" * 60 + "b"
    if kind == "json-schema":
        (tmp_path / "schema.json").write_text(json.dumps({"pattern": "^" + value}), encoding="utf-8")
        value, text = str(tmp_path / "schema.json"), json.dumps(text)
    rewards = load_rewards([f"{kind}:^{value}" if kind == "regex" else f"{kind}:{value}", "exact"])
    assert rewards.scores(Answer(text, text, "end")) == [0, 1]
    assert len(rewards.too_slow) == 1


@pytest.mark.parametrize(
    "setting", ["regex:(", "regex:a{99999999999999}", "format:)", "format:a)|(b", "json-schema:no such file.json"]
)
def test_an_unusable_pattern_or_file_is_refused_with_the_reason(setting: str) -> None:
    with pytest.raises(TraindeckError) as raised:
        load_rewards([setting])
    assert raised.value.code == "config.bad_reward"
    assert raised.value.params["reason"]


def test_at_least_one_reward_is_required() -> None:
    with pytest.raises(TraindeckError, match="--rewards"):
        load_rewards([])
