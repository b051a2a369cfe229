"""Rows with good and bad answers: detection of their columns, and their conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainer_core.config import Config
from trainer_core.data.column_mapping import MissingColumnError, map_columns
from trainer_core.data.columns import Preference, RowError, Turn, is_trained_on
from trainer_core.data.preferences import extract_preference

DPO, KTO = Config(objective="dpo"), Config(objective="kto")
ASK, GOOD, BAD = ("user", "问题?"), ("assistant", "好"), ("assistant", "坏")
SYSTEM = ("system", "Be brief.")


def as_messages(*turns: Turn) -> list[dict[str, str]]:
    return [{"role": turn[0], "content": turn[1]} for turn in turns]


def as_sharegpt(*turns: Turn) -> list[dict[str, str]]:
    names = {"user": "human", "assistant": "gpt"}
    return [{"from": names.get(turn[0], turn[0]), "value": turn[1]} for turn in turns]


def extract(row: dict[str, Any], config: Config = DPO) -> Preference:
    return extract_preference(row, map_columns(list(row), config))


def reason_of(row: dict[str, Any], config: Config = DPO) -> str:
    with pytest.raises(RowError) as caught:
        extract(row, config)
    return str(caught.value)


@pytest.mark.parametrize(
    ("names", "objective", "kind", "used"),
    [
        ("prompt chosen rejected", "dpo", "preference", "prompt chosen rejected tools"),
        ("chosen rejected", "orpo", "preference", "chosen rejected tools"),
        ("instruction input chosen rejected", "ipo", "preference", "instruction input chosen rejected tools"),
        ("conversations chosen rejected system", "simpo", "preference", "system conversations chosen rejected tools"),
        ("question Accepted Rejected id", "dpo", "preference", "question Accepted Rejected tools"),
        ("text prompt response chosen rejected", "dpo", "preference", "prompt chosen rejected tools"),
        ("prompt chosen rejected label", "kto", "preference", "prompt chosen rejected tools"),
        ("prompt completion label", "kto", "labelled", "prompt completion label tools"),
        ("messages kto_tag functions", "kto", "labelled", "messages kto_tag functions"),
    ],
)
def test_the_objective_determines_which_columns_are_read(names: str, objective: Any, kind: str, used: str) -> None:
    mapping = map_columns(names.split(), Config(objective=objective))
    found = [name for name in mapping.column_names if name in {*names.split(), mapping.tools}]
    assert (mapping.kind, mapping.task, " ".join(found)) == (kind, "preference", used)


def test_configured_columns_take_precedence() -> None:
    config = Config(objective="dpo", prompt_column="q", chosen_column="a", rejected_column="b")
    mapping = map_columns(["q", "a", "b", "prompt", "chosen", "rejected"], config)
    assert (mapping.prompt, mapping.chosen, mapping.rejected) == ("q", "a", "b")
    assert map_columns(["prompt", "response", "ok"], Config(objective="kto", label_column="ok")).label == "ok"


@pytest.mark.parametrize(
    ("names", "objective", "missing"),
    [
        ("prompt response", "dpo", "chosen"),
        ("prompt chosen", "dpo", "rejected"),
        ("prompt response label", "dpo", "chosen"),
        ("prompt response", "kto", "label"),
        ("prompt label", "kto", "messages"),
        ("", "ipo", "chosen"),
    ],
)
def test_the_first_missing_column_is_named(names: str, objective: Any, missing: str) -> None:
    with pytest.raises(MissingColumnError, match=missing):
        map_columns(names.split(), Config(objective=objective))


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "问题?", "chosen": "好", "rejected": "坏"},
        {"prompt": as_messages(ASK), "chosen": as_messages(GOOD), "rejected": as_messages(BAD)},
        {"prompt": json.dumps(as_messages(ASK)), "chosen": json.dumps(as_messages(GOOD)), "rejected": "坏"},
        {"chosen": as_messages(ASK, GOOD), "rejected": as_messages(ASK, BAD)},
        {"prompt": "问题?", "chosen": as_messages(ASK, GOOD), "rejected": as_messages(ASK, BAD)},
        {"prompt": "another id", "chosen": as_messages(ASK, GOOD), "rejected": as_messages(ASK, BAD)},
        {"messages": as_messages(ASK, GOOD), "chosen": as_messages(ASK, GOOD), "rejected": as_messages(ASK, BAD)},
        {"messages": as_messages(ASK, GOOD), "chosen": as_messages(GOOD), "rejected": as_messages(BAD)},
        {"messages": as_messages(ASK), "chosen": as_messages(ASK, GOOD), "rejected": "坏"},
        {"messages": as_messages(ASK), "chosen": "好", "rejected": "坏"},
        {"conversations": as_sharegpt(ASK), "chosen": as_sharegpt(GOOD)[0], "rejected": as_sharegpt(BAD)[0]},
        {"conversations": as_sharegpt(ASK), "chosen": json.dumps(as_sharegpt(GOOD)[0]), "rejected": "坏"},
        {"chosen": "\n\nHuman: 问题?\n\nAssistant: 好", "rejected": "\n\nHuman: 问题?\n\nAssistant: 坏"},
    ],
)
def test_every_form_of_a_pair_gives_the_same_conversations(row: dict[str, Any]) -> None:
    assert extract(row) == ((ASK, GOOD), (ASK, BAD))


def test_an_input_and_a_system_prompt_are_part_of_both_conversations() -> None:
    row = {"instruction": "Add", "input": "1 和 2", "chosen": "3", "rejected": "4", "system": "Be brief."}
    prompt = (SYSTEM, ("user", "Add\n\n1 和 2"))
    assert extract(row) == ((*prompt, ("assistant", "3")), (*prompt, ("assistant", "4")))
    row = {"chosen": as_messages(SYSTEM, ASK, GOOD), "rejected": as_messages(SYSTEM, ASK, BAD), "system": "unused"}
    assert extract(row).chosen[0] == SYSTEM


def test_the_prompt_is_what_both_conversations_begin_with() -> None:
    first = (ASK, ("assistant", "Which one?"), ("user", "The second"))
    row = {"chosen": as_messages(*first, GOOD), "rejected": as_messages(*first, BAD, ASK, GOOD)}
    chosen, rejected = extract(row)
    assert [(turn[:2], is_trained_on(turn)) for turn in chosen if turn[0] == "assistant"] == [
        (first[1], False),
        (GOOD, True),
    ]
    assert [is_trained_on(turn) for turn in rejected if turn[0] == "assistant"] == [False, True, True]


def test_answers_that_go_on_after_the_messages_follow_them() -> None:
    more = ("user", "More")
    row = {"messages": as_messages(ASK, GOOD), "chosen": as_messages(more, GOOD), "rejected": as_messages(more, BAD)}
    chosen, rejected = extract(row)
    assert [turn[1] for turn in chosen] == ["问题?", "好", "More", "好"]
    assert [turn[1] for turn in rejected] == ["问题?", "好", "More", "坏"]


def test_of_two_equal_conversations_only_the_last_answer_is_trained_on() -> None:
    row = {"chosen": as_messages(ASK, BAD, ASK, GOOD), "rejected": as_messages(ASK, BAD, ASK, GOOD)}
    chosen, rejected = extract(row)
    assert chosen == rejected
    assert [is_trained_on(turn) for turn in chosen if turn[0] == "assistant"] == [False, True]


def test_tools_begin_both_conversations() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "now", "arguments": {}}]}
    tools = [{"name": "now", "description": "时间"}]
    row = {"prompt": "问题?", "tools": json.dumps(tools), "chosen": [call], "rejected": "坏"}
    chosen, rejected = extract(row)
    assert (
        chosen[0]
        == rejected[0]
        == ("tools", json.dumps([{"type": "function", "function": tools[0]}], ensure_ascii=False))
    )
    assert (json.loads(chosen[-1][2])["tool_calls"][0]["function"]["name"], rejected[-1]) == ("now", BAD)


@pytest.mark.parametrize(
    ("label", "is_good"),
    [
        (True, True), (False, False), (1, True), (0, False), (1.0, True), ("true", True), ("False", False),
        ("1", True), (" 0 ", False),
    ],
)  # fmt: skip
def test_a_label_says_whether_an_answer_is_good(label: Any, is_good: bool) -> None:
    for row in (
        {"prompt": "问题?", "completion": "好", "label": label},
        {"prompt": as_messages(ASK), "completion": as_messages(GOOD), "label": label},
        {"messages": as_messages(ASK, GOOD), "label": label},
        {"conversations": as_sharegpt(ASK, GOOD), "kto_tag": label},
    ):
        assert extract(row, KTO) == (((ASK, GOOD), ()) if is_good else ((), (ASK, GOOD)))


def test_a_label_is_about_what_follows_the_last_user_turn() -> None:
    row = {"messages": as_messages(ASK, GOOD, ASK, BAD, ("tool", "1"), GOOD), "label": 0}
    rejected = extract(row, KTO).rejected
    assert [is_trained_on(turn) for turn in rejected if turn[0] == "assistant"] == [False, True, True]


def test_an_answer_that_is_json_but_no_message_is_text() -> None:
    row = {"prompt": "Give JSON", "chosen": '{"from": "A", "value": 3}', "rejected": "[1, 2]"}
    chosen, rejected = extract(row)
    assert (chosen[-1][1], rejected[-1][1]) == (row["chosen"], row["rejected"])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "p", "chosen": "", "rejected": "b"}, "“chosen” is empty"),
        ({"prompt": "p", "chosen": "a", "rejected": None}, "“rejected” is empty"),
        ({"prompt": "p", "chosen": "a", "rejected": float("nan")}, "“rejected” is empty"),
        ({"prompt": "p", "chosen": " \n", "rejected": "b"}, "“chosen” is empty"),
        ({"chosen": "\n\nHuman: q\n\nAssistant:", "rejected": "\n\nHuman: q\n\nAssistant: b"},
         "“chosen” ends with an empty answer"),
        ({"prompt": "p", "chosen": "a", "rejected": True}, "“rejected” is not text"),
        ({"prompt": "", "chosen": "a", "rejected": "b"}, "it has no prompt"),
        ({"chosen": "a", "rejected": "b"}, "it has no prompt"),
        ({"chosen": as_messages(ASK, GOOD), "rejected": as_messages(("user", "other"), BAD)}, "it has no prompt"),
        ({"prompt": "p", "chosen": as_messages(("owl", "x")), "rejected": "b"}, "a message's role is “owl”"),
        ({"prompt": "p", "chosen": [1], "rejected": "b"}, "“chosen” is not a list of messages"),
        ({"chosen": as_messages(ASK), "rejected": as_messages(ASK, BAD)}, "“chosen” has no answer of an assistant"),
        ({"prompt": "p", "chosen": "a", "rejected": "b", "tools": [1]}, "“tools” is not a list of tools"),
    ],
)  # fmt: skip
def test_a_pair_that_cannot_be_used_is_bad(row: dict[str, Any], reason: str) -> None:
    assert reason_of(row) == reason


@pytest.mark.parametrize("label", [None, "", "maybe", 2, -1, [True]])
def test_a_row_without_a_label_is_bad(label: Any) -> None:
    row = {"prompt": "p", "completion": "a", "label": label}
    assert reason_of(row, KTO) == "“label” is not true, false, 1 or 0"
