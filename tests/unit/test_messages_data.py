"""Chinese texts of bad row reasons, positions and allowed values."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from trainer_core.config import knobs
from trainer_core.data.formats import read_rows
from trainer_core.data.readers.base import TOO_LONG, FileInput, SourceFile
from trainer_core.messages import format_message
from trainer_core.messages.data import translate_params, translate_position, translate_reason

SOURCES = Path(__file__).resolve().parents[2] / "trainer_core"


def reasons_of(file: str, name: str) -> list[str]:
    """Return the texts of all `name(…)` in a file, with “列” in place of expressions, and those that `name` returns."""
    reasons = []
    for node in ast.walk(ast.parse((SOURCES / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name and node.args:
            text = node.args[0]
            parts = text.values if isinstance(text, ast.JoinedStr) else [text]
            reasons.append("".join(str(part.value) if isinstance(part, ast.Constant) else "列" for part in parts))
        elif isinstance(node, ast.FunctionDef) and node.name == name:
            returned = [leaf for part in ast.walk(node) if isinstance(part, ast.Return) for leaf in ast.walk(part)]
            texts = (leaf.value for leaf in returned if isinstance(leaf, ast.Constant))
            reasons += [text for text in texts if isinstance(text, str) and text]
    return reasons


@pytest.mark.parametrize(
    ("file", "name", "count"),
    [
        ("data/columns.py", "RowError", 9),
        ("base_model/weights.py", "WeightMismatchError", 4),
        ("models/transformers_model.py", "_find_problem", 6),
    ],
)
def test_every_reason_is_translated(file: str, name: str, count: int) -> None:
    reasons = reasons_of(file, name)
    assert len(reasons) >= count
    translated = {reason: translate_reason(reason, "zh") for reason in reasons}
    english = re.compile(r"(?!logits|dropout)\b[A-Za-z]+")
    assert {reason: text for reason, text in translated.items() if english.search(text)} == {}


@pytest.mark.parametrize(
    "line", ["{", '{"a"}', '{"a" 1}', '{"a": 1} x', '{"a": "b', "[1]", '{"a": "\\q"}', '{"a": "\\u12"}', '{"a": "\t"}']
)
def test_json_error_messages_are_translated(line: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(line, encoding="utf-8")
    [reason] = read_rows(FileInput(SourceFile(path, "jsonl", "utf-8", len(line))))
    english = re.findall("[A-Za-z]{3,}", translate_reason(str(reason), "zh"))
    assert set(english) <= {"JSON"}, reason


def test_reasons_of_archive_members_keep_their_prefix() -> None:
    assert translate_reason(".json: Extra data", "zh") == ".json：JSON：末尾有多余的内容"
    assert translate_reason(f".txt: {TOO_LONG}", "zh") == ".txt：超过 64 MiB"


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("line 17", "第 17 行"),
        ("row 4117", "第 4117 行"),
        ("element 3", "第 3 个元素"),
        ("line 2 after byte 4096", "第 4096 字节之后的第 2 行"),
        ("sample a/b 1", "样本“a/b 1”"),
        ("its end, after line 5", "第 5 行之后的末尾"),
        ("byte 4096 of 9000, after line 5", "第 5 行之后的第 4096/9000 字节"),
        ("somewhere else", "somewhere else"),
    ],
)
def test_positions_are_translated(english: str, chinese: str) -> None:
    assert translate_position(english, "zh") == chinese


def test_unknown_reasons_are_unchanged() -> None:
    assert translate_reason("[Errno 5] Input/output error {x}", "zh") == "[Errno 5] Input/output error {x}"


def test_messages_translate_position_and_reason() -> None:
    params = {"path": "a.jsonl", "position": "line 17", "reason": "“text” is missing"}
    assert format_message("data.bad_row", params, "zh").startswith("a.jsonl 的第 17 行无效：缺少“text”。")
    assert format_message("data.bad_row", params, "en").startswith("a.jsonl, line 17, is invalid: “text” is missing.")


def test_allowed_values_are_translated() -> None:
    for knob in knobs().values():
        if knob.kind not in ("choice", "bool") and not knob.shape:
            allowed = translate_params({"allowed": knob.allowed()}, "zh")["allowed"]
            assert not re.search("[A-Za-z]{2,}", str(allowed)), knob.name
    text = format_message("config.bad_value", {"allowed": "a number > 0 and <= 10"}, "zh")
    assert text.endswith("允许的值：数值，> 0 且 <= 10。")


def test_phrases_with_braces_are_translated() -> None:
    assert translate_reason("it should be an array of objects: [{…}, {…}]", "zh") == "应为对象数组：[{…}, {…}]"
