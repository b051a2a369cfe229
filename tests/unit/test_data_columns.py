"""Column detection, and conversion of rows to documents."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.prepared_data import RecordingReporter
from trainer_core.config import Config
from trainer_core.data import columns
from trainer_core.data.column_mapping import ColumnMapping, MissingColumnError, map_columns
from trainer_core.data.columns import RowError
from trainer_core.data.documents import DocumentStream
from trainer_core.data.sources import scan_path
from trainer_core.messages import TraindeckError

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "So long"},
]


@pytest.mark.parametrize(
    ("names", "kind", "used"),
    [
        ("id text", "text", "text"),
        ("prompt response", "pair", "prompt response"),
        ("prompt completion meta", "pair", "prompt completion"),
        ("instruction input output", "pair", "instruction input output"),
        ("instruction output system", "pair", "system instruction output"),
        ("question answer", "pair", "question answer"),
        ("Instruction Input System Output", "pair", "System Instruction Input Output"),
        ("id messages", "messages", "messages tools"),
        ("conversations functions source", "messages", "conversations functions"),
        ("messages prompt response", "messages", "messages tools"),
        ("content url", "text", "content"),
        ("Question Answer", "pair", "Question Answer"),
        ("问题 回答 编号", "pair", "问题 回答"),
        ("Text id", "text", "Text"),
        ("text prompt response", "text", "text"),
    ],
)
def test_common_column_names_are_detected(names: str, kind: str, used: str) -> None:
    mapping = map_columns(names.split(), Config())
    optional = {"tools": mapping.tools} if kind == "messages" else {}
    found = [name for name in mapping.column_names if name in {*names.split(), *optional.values()}]
    assert (mapping.kind, " ".join(found)) == (kind, used)


def test_an_addition_or_a_system_prompt_may_be_missing_in_the_first_rows(tmp_path: Path) -> None:
    rows: list[dict[str, str]] = [{"prompt": "q", "response": "a"}] * 300
    rows.append({"prompt": "q", "response": "a", "input": "more", "system": "Be brief."})
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    *_, last = DocumentStream([scan_path(str(path), Config())], Config())
    assert last.turns == (("system", "Be brief."), ("user", "q\n\nmore"), ("assistant", "a"))


def test_a_configured_task_or_column_takes_precedence() -> None:
    assert map_columns(["text", "prompt", "response"], Config(task="sft")).kind == "pair"
    assert map_columns(["messages", "content"], Config(task="pretrain")).text == "content"
    pair = map_columns(["q", "a", "text"], Config(task="sft", prompt_column="q", response_column="a"))
    assert (pair.prompt, pair.response) == ("q", "a")
    assert map_columns(["body"], Config(text_column="body")).text == "body"
    assert map_columns(["instruction", "context", "output"], Config(input_column="context")).input == "context"
    assert map_columns(["instruction", "input", "output"], Config(input_column="")).input == ""


def test_a_configured_column_that_is_missing_is_an_error() -> None:
    for config in (Config(text_column="body"), Config(task="sft", prompt_column="q"), Config(task="sft")):
        with pytest.raises(MissingColumnError):
            map_columns(["content"], config)
    with pytest.raises(MissingColumnError) as caught:
        map_columns(["prompt", "reply"], Config())
    assert str(caught.value) == "response"


def test_a_file_with_the_usual_conversations_is_read_beside_files_with_a_configured_column() -> None:
    config = Config(messages_column="dialog")
    assert map_columns(["dialog", "messages"], config).messages == "dialog"
    mapping = map_columns(["correction_id", "messages", "chosen", "rejected"], config)  # of the chat page
    assert (mapping.kind, mapping.messages) == ("messages", "messages")


def test_alpaca_input_is_appended_to_the_instruction() -> None:
    mapping = map_columns(["instruction", "input", "output"], Config())
    row = {"instruction": "Add them.", "input": "1 and 2", "output": "3"}
    assert columns.extract_turns(row, mapping) == (("user", "Add them.\n\n1 and 2"), ("assistant", "3"))
    assert columns.extract_turns({**row, "input": ""}, mapping)[0] == ("user", "Add them.")
    assert columns.extract_turns({**row, "input": None}, mapping)[0] == ("user", "Add them.")


def test_a_system_column_that_is_not_empty_begins_the_conversation() -> None:
    mapping = map_columns(["system", "prompt", "response"], Config())
    row = {"system": "Be brief.", "prompt": "Hi", "response": "Hello"}
    assert columns.extract_turns(row, mapping)[0] == ("system", "Be brief.")
    assert columns.extract_turns({**row, "system": ""}, mapping)[0] == ("user", "Hi")


@pytest.mark.parametrize("as_text", [False, True])
def test_chats_keep_all_their_turns(as_text: bool) -> None:
    mapping = ColumnMapping("messages", messages="messages")
    row = {"messages": json.dumps(MESSAGES) if as_text else MESSAGES}
    assert columns.extract_turns(row, mapping) == tuple((message["role"], message["content"]) for message in MESSAGES)


def test_sharegpt_roles_are_mapped_and_unanswered_turns_dropped() -> None:
    mapping = ColumnMapping("messages", messages="conversations")
    row = {
        "conversations": [
            {"from": "human", "value": "Hi"},
            {"from": "gpt", "value": "Hello"},
            {"from": "human", "value": "?"},
        ]
    }
    assert columns.extract_turns(row, mapping) == (("user", "Hi"), ("assistant", "Hello"))


def test_a_null_content_falls_back_to_value() -> None:
    row = {
        "conversations": [
            {"role": None, "from": "human", "content": None, "value": "Hi"},
            {"role": "assistant", "from": None, "content": "Hello", "value": None},
        ]
    }
    mapping = map_columns(["conversations"], Config())
    assert columns.extract_turns(row, mapping) == (("user", "Hi"), ("assistant", "Hello"))


def test_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "image"}, {"type": "text", "text": "l"}, "o"]
    row = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": parts}]}
    assert columns.extract_turns(row, ColumnMapping("messages", messages="messages"))[1] == ("assistant", "Hello")


def test_a_part_with_null_text_is_empty() -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "image", "text": None}, None]
    rows = pa.table({"messages": [[{"role": "assistant", "content": parts}]]}).to_pylist()
    assert columns.extract_turns(rows[0], ColumnMapping("messages", messages="messages")) == (("assistant", "Hello"),)


def test_a_user_message_may_be_empty() -> None:
    row = {"messages": [{"role": "user", "content": None}, {"role": "assistant", "content": "Hello"}]}
    assert columns.extract_turns(row, ColumnMapping("messages", messages="messages"))[0] == ("user", "")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (None, "not a list"),
        ([], "not a list"),
        ("{", "not a list"),
        ("[" * 100_000, "not a list"),
        ([1, 2], "not a list"),
        ([{"role": "user", "content": "Hi"}], "no answer"),
        ([{"role": "wizard", "content": "Hi"}], "role is “wizard”"),
        ([{"role": "assistant", "content": 7}], "not text"),
        ([{"role": "assistant", "content": [{"text": 7}]}], "not text"),
        ([{"role": "assistant", "content": [{"text": ["Hi"]}, {"text": "Hi"}]}], "not text"),
        ([{"role": "assistant", "content": [["Hi"]]}], "not text"),
        ([{"role": "assistant", "content": ""}], "an assistant's message has no text"),
        ([{"role": "assistant", "content": " \n"}], "an assistant's message has no text"),
        ([{"role": "assistant", "content": [{"type": "image"}]}], "an assistant's message has no text"),
        (
            [{"role": "assistant", "tool_calls": [{}]}, {"role": "tool", "content": "4"}, MESSAGES[2]],
            "a tool call names no function",
        ),
    ],
)
def test_an_invalid_chat_is_a_bad_row_with_its_reason(messages: Any, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        columns.extract_turns({"messages": messages}, ColumnMapping("messages", messages="messages"))


KEYS = st.sampled_from(["role", "content", "from", "value", "text", "x"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(ANYTHING)
def test_any_column_value_is_a_document_or_a_bad_row(value: Any) -> None:
    for mapping in (
        ColumnMapping("messages", messages="a"),
        ColumnMapping("pair", prompt="a", response="a"),
        ColumnMapping("text", text="a"),
    ):
        with contextlib.suppress(RowError):
            turns = columns.extract_turns({"a": value}, mapping) if mapping.task == "sft" else ()
            text = "" if turns else columns.extract_text({"a": value}, ColumnMapping("text", text="a"))
            assert turns or isinstance(text, str)
            assert all(isinstance(content, str) for _, content in turns)


# --- document streams ------------------------------------------------------------------------------


def write_files(folder: Path) -> list[Path]:
    """Write files of several formats with bad rows, empty rows, long texts and undecodable bytes."""
    rows = [{"text": f"row {i}"} if i % 7 else {"text": ""} for i in range(40)]
    lines = [json.dumps(row) for row in rows]
    lines[11], lines[23] = '{"text": "cut in ha', '{"other": 1}'
    (folder / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "b.txt").write_bytes("零一二三四五六七八九\n".encode() * 900 + b"\xff\xfe\n")
    pq.write_table(
        pa.table({"text": ["short", "long " * 200_000, None, "end"] * 3}), folder / "c.parquet", row_group_size=5
    )
    (folder / "d.csv").write_text('text,x\none,1\n"two\nlines",2\nthree,3\n', encoding="utf-8")
    return [folder / name for name in ("a.jsonl", "b.txt", "c.parquet", "d.csv")]


def test_a_stream_resumed_at_any_position_yields_the_same_documents_and_counts(tmp_path: Path) -> None:
    config = Config()
    scans = [scan_path(str(path), config) for path in write_files(tmp_path)]
    stream = DocumentStream(scans, config, RecordingReporter())
    documents, positions = [], [DocumentStream(scans, config).position]
    for document in stream:
        documents.append(document)
        positions.append(stream.position)
    assert positions.count(None) == 9  # within the three long texts, each of four parts
    assert (stream.counts.bad, stream.counts.undecodable, stream.counts.empty) == (2, 2, 9)
    for number in range(0, len(positions), 3):
        position = positions[number]
        if position is not None:
            resumed = DocumentStream(scans, config, RecordingReporter(), json.loads(json.dumps(position)))
            assert list(resumed) == documents[number:]
            assert resumed.counts == stream.counts


def test_files_of_one_folder_may_have_different_columns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"instruction": "Hi", "output": "Hello"}), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps({"messages": MESSAGES}), encoding="utf-8")
    config = Config()
    scan = scan_path(str(tmp_path), config)
    assert [file.mapping.kind for file in scan.files] == ["pair", "messages"]
    assert [len(document.turns) for document in DocumentStream([scan], config)] == [2, 5]


def test_on_bad_row_stop_raises_an_error_at_the_first_bad_row(tmp_path: Path) -> None:
    path = write_files(tmp_path)[0]
    config = Config(on_bad_row="stop")
    with pytest.raises(TraindeckError) as caught:
        list(DocumentStream([scan_path(str(path), config)], config))
    assert (caught.value.code, caught.value.params["position"]) == ("data.bad_row", "line 12")
    assert str(path) in str(caught.value)


def test_exceeding_bad_row_limit_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = ['{"text": "fine"}'] * 300
    lines[20::10] = ["broken"] * len(lines[20::10])
    path.write_text("\n".join(lines), encoding="utf-8")
    for limit, count in ((5, 6), (27, 28)):
        config = Config(bad_row_limit=limit)
        with pytest.raises(TraindeckError) as caught:
            list(DocumentStream([scan_path(str(path), config)], config))
        assert (caught.value.code, caught.value.params["count"]) == ("data.too_many_bad_rows", count)
        assert caught.value.params["position"] == "line 21"
    for limit in (28, 0):
        config = Config(bad_row_limit=limit)
        stream = DocumentStream([scan_path(str(path), config)], config)
        assert (len(list(stream)), stream.counts.bad) == (272, 28)
