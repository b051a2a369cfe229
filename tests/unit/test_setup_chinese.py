"""The launcher in Chinese: everything that it says is known there, and is said in the language of the terminal."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import words
from launcher.chinese import SENTENCES, in_chinese

ROOT = Path(__file__).resolve().parents[2]
FILES = [*sorted((ROOT / "launcher").glob("*.py")), ROOT / "train_gpu.py"]
# For the log, for developers (`test`), for programs, or parts that have a sentence around them in the table.
NOT_SAID = re.compile(
    r"exit code A after A s|A is in use by A|A cannot be moved: A|The update failed: A|Python: A \(passed over: A\)"
    r"|== all checks passed|import contracts|A \(exit code A\)|train_gpu(\.bat|\.sh)? (setup|uninstall)"
    r"|\./train_gpu\.sh setup|not there|, (compute capability A|or do without the GPU: setup --torch cpu)"
    r"|A (is|has) .*|\nNo space left on device"
)


def calls_for_programs(tree: ast.Module) -> Iterator[ast.AST]:
    """What argparse and regular expressions take, and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.search(r"argu|Argu|re\.|check_output", ast.unparse(node.func)):
            yield from ast.walk(node)
        if isinstance(node, ast.Expr):
            yield from [node.value] if isinstance(node.value, ast.Constant) else []
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXPLAIN":
            assert isinstance(node.value, ast.Tuple)
            yield from (row.elts[0] for row in node.value.elts if isinstance(row, ast.Tuple))
        if isinstance(node, ast.JoinedStr):
            yield from node.values


def texts(file: Path) -> Iterator[str]:
    """What looks like words for a person: `A` stands for each value."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    others = set(calls_for_programs(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "A" for part in node.values]
            text = "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        code = "\nimport " in text or text.startswith("import sys;")
        if node not in others and not code and re.search(r"[A-Za-z]{2,} +[a-z(]", text):
            yield text


@pytest.mark.parametrize("file", [file for file in FILES if file.name != "chinese.py"], ids=lambda file: file.stem)
def test_all_that_the_launcher_says_is_known_in_chinese(file: Path) -> None:
    unknown = [text for text in texts(file) if not NOT_SAID.fullmatch(text) and not is_chinese(in_chinese(text))]
    assert unknown == []


def is_chinese(text: str) -> bool:
    return re.search("[\u4e00-\u9fff]", text) is not None


@pytest.mark.parametrize(("english", "chinese"), SENTENCES)
def test_a_sentence_keeps_its_values_and_is_found_again(english: str, chinese: str) -> None:
    values = [f"<{number}>" for number in range(english.count("{}"))]
    assert sorted(re.findall(r"<\d>", chinese.format(*values))) == sorted(values)
    said = in_chinese(english.format(*values))
    assert is_chinese(said)
    assert sorted(re.findall(r"<\d>", said)) == sorted(values)


def test_sentences_within_sentences_are_said_in_chinese_and_a_tools_own_words_stay() -> None:
    said = in_chinese(
        "ERROR: The update failed, and what was there before goes on working. PyTorch 2.13.0 could not be installed:\n"
        "    ERROR: Could not find a version: 2.13.0. Sorry.\n"
        "The disk is full: free some GB and start again.\n"
        "  C:\\Python 3\\python.exe: Python 3.10 is too old"
    )
    assert said.splitlines() == [
        "错误：更新失败，原有的环境照常可用。无法安装 PyTorch 2.13.0：",
        "    错误：Could not find a version: 2.13.0. Sorry.",
        "磁盘已满：请腾出几 GB，然后重新启动。",
        "  C:\\Python 3\\python.exe: Python 3.10 太旧",
    ]


def test_a_long_line_of_a_tool_takes_no_time() -> None:
    line = "a: b. c " * 120
    assert in_chinese(line) == line


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("TRAINDECK_LANG", "zh", "由用户指定"), ("LANG", "zh_CN.UTF-8", "由用户指定"), ("LANG", "en_US", "chosen")],
)
def test_the_language_is_that_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    for variable in ("TRAINDECK_LANG", "LC_ALL", "LANG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, value)
    assert words.shown("chosen") == said


def test_a_line_that_is_rewritten_fills_its_columns_and_no_more() -> None:
    assert words.cut("安装 a", 9) == "安装 a   "
    assert words.cut("安装安装安装", 6) == "安装  "
