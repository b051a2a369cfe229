"""Rewards of answers as settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer_core.messages import TraindeckError
from trainer_core.rewards.functions import Answer
from trainer_core.rewards.rewards import load_rewards


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
    ["", "correct", "exact:1", "number:x", "number:-1", "number:nan", "length:", "length:-", "length:3",
     "language:klingon", "language", "regex", "format:", "json-schema:", "2*", "x*exact", "exact*2"],
)  # fmt: skip
def test_an_unknown_reward_is_refused(setting: str) -> None:
    with pytest.raises(TraindeckError) as raised:
        load_rewards([setting])
    assert raised.value.code == "config.unknown_reward"


@pytest.mark.parametrize("setting", ["regex:(", "format:)", "format:a)|(b", "json-schema:no such file.json"])
def test_an_unusable_pattern_or_file_is_refused_with_the_reason(setting: str) -> None:
    with pytest.raises(TraindeckError) as raised:
        load_rewards([setting])
    assert raised.value.code == "config.bad_reward"
    assert raised.value.params["reason"]


def test_at_least_one_reward_is_required() -> None:
    with pytest.raises(TraindeckError, match="--rewards"):
        load_rewards([])
