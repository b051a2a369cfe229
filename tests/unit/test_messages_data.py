"""Why a row cannot be used, in Chinese: every reason that the readers give, and where it is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from trainer_core.config import knobs
from trainer_core.data.encodings import ReadStats
from trainer_core.data.readers.base import TOO_LONG, ReadOptions, SourceFile
from trainer_core.data.readers.json_objects import RowDecoder, read_jsonl
from trainer_core.messages import format_message
from trainer_core.messages.data import translate_params, translate_position, translate_reason

DATA = Path(__file__).resolve().parents[2] / "trainer_core" / "data"


def reasons_of_columns() -> list[str]:
    """The texts of every `BadRow(…)` in columns.py, their holes filled."""
    found = []
    for node in ast.walk(ast.parse((DATA / "columns.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "BadRow":
            text = node.args[0]
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "列" for part in parts))
    return found


def test_every_reason_about_a_column_is_worded() -> None:
    reasons = reasons_of_columns()
    assert len(reasons) >= 9
    assert [reason for reason in reasons if re.search("[A-Za-z]", translate_reason(reason, "zh"))] == []


@pytest.mark.parametrize(
    "line", ["{", '{"a"}', '{"a" 1}', '{"a": 1} x', '{"a": "b', "[1]", '{"a": "\\q"}', '{"a": "\\u12"}', '{"a": "\t"}']
)
def test_what_python_says_about_broken_json_is_worded(line: str, tmp_path: Path) -> None:
    path, tally = tmp_path / "a.jsonl", ReadStats()
    path.write_text(line, encoding="utf-8")
    assert list(read_jsonl(SourceFile(path, "jsonl", "utf-8", len(line)), ReadOptions(), tally)) == []
    assert tally.bad == 1
    english = re.findall("[A-Za-z]{3,}", translate_reason(tally.reason, "zh"))
    assert set(english) <= {"JSON"}, tally.reason


def test_a_member_of_an_archive_stays_in_front_of_its_reason() -> None:
    assert translate_reason(".json: Extra data", "zh") == ".json：JSON：末尾有多余的内容"
    assert translate_reason(f".txt: {TOO_LONG}", "zh") == ".txt：超过 64 MiB"


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("line 17", "第 17 行"),
        ("row 4117", "第 4117 行"),
        ("element 3", "第 3 个元素"),
        ("line 2 after byte 4096", "第 4096 字节之后的第 2 行"),
        ("sample a/b 1", "样本 a/b 1"),
        ("its end, after line 5", "第 5 行之后的末尾"),
        ("byte 4096 of 9000, after line 5", "第 5 行之后的第 4096/9000 字节"),
        ("somewhere else", "somewhere else"),
    ],
)
def test_places_are_worded(english: str, chinese: str) -> None:
    assert translate_position(english, "zh") == chinese


def test_a_reason_that_nobody_knows_stays_as_it_is() -> None:
    assert translate_reason("[Errno 5] Input/output error {x}", "zh") == "[Errno 5] Input/output error {x}"


def test_a_message_tells_place_and_reason_in_its_own_language() -> None:
    told = {"path": "a.jsonl", "position": "line 17", "reason": "“text” is missing"}
    assert format_message("data.bad_row", told, "zh").startswith("a.jsonl 的第 17 行无法使用：缺少“text”。")
    assert format_message("data.bad_row", told, "en").startswith("a.jsonl, line 17, cannot be used: “text” is missing.")


@pytest.mark.parametrize(
    ("line", "reason"), [(b'{"a": "b', "Unterminated string"), (b'{"a": "\n"}', "Invalid control character")]
)
def test_what_is_said_of_a_json_line_is_whole_and_known_in_chinese(line: bytes, reason: str) -> None:
    told = RowDecoder((), ReadStats()).decode_row(line)
    assert told == reason
    assert translate_reason(reason, "zh").startswith("JSON：")


def test_what_a_knob_allows_is_worded_in_chinese() -> None:
    for knob in knobs().values():
        if knob.kind not in ("choice", "bool") and not knob.shape:
            told = translate_params({"allowed": knob.allowed()}, "zh")["allowed"]
            assert not re.search("[A-Za-z]{2,}", str(told)), knob.name
    told = format_message("config.bad_value", {"allowed": "a number > 0 and <= 10"}, "zh")
    assert told.endswith("允许的值：数值，> 0 且 <= 10。")


def test_a_phrase_with_braces_is_worded() -> None:
    assert translate_reason("it should be an array of objects: [{…}, {…}]", "zh") == "应为对象数组：[{…}, {…}]"
