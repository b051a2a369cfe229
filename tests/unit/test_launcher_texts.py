"""Texts of the launcher: keys, parameters and language."""

from __future__ import annotations

import ast
import io
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import choices, messages
from launcher.messages import message
from trainer_core import texts

ROOT = Path(__file__).resolve().parents[2]
FILES = [*sorted((ROOT / "launcher").glob("*.py")), ROOT / "train_gpu.py"]
LISTED = {key for _, key, _ in messages.KNOWN_FAILURES} | set(choices.INPUT_REASONS.values())


def message_calls() -> Iterator[tuple[str, set[str], str]]:
    """Yield key, parameters and location of every `message(...)`."""
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "message":
                parameters = {str(keyword.arg) for keyword in node.keywords}
                for key in ast.walk(node.args[0]):
                    if isinstance(key, ast.Constant):
                        yield str(key.value), parameters, f"{file.name}:{node.lineno}"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_message_has_a_text_with_its_parameters(language: texts.Language) -> None:
    table = texts.catalogue(language)
    for key, parameters, location in message_calls():
        expected = {name for _, name, _, _ in string.Formatter().parse(table[key]) if name is not None}
        assert parameters == expected, location
    assert all(table[key] for key in LISTED)


def test_every_text_of_the_launcher_is_used() -> None:
    used = {key for key, _, _ in message_calls()} | LISTED
    assert {key for key in texts.catalogue("en") if key.startswith("launcher.")} == used


def test_errors_of_tools_and_their_advice_are_translated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRAINDECK_LANG", "zh")
    error = messages.tool_error(message("launcher.packages_not_installed"), "ERROR: {no} No space left")
    assert message("launcher.update_failed", error=error).splitlines()[:3] == [
        "更新失败，现有环境仍可使用。无法安装软件包：",
        "    ERROR: {no} No space left",
        "磁盘已满。请腾出几 GB 空间，然后重新启动。",
    ]
    assert error.summary == "无法安装软件包： 磁盘已满。请腾出几 GB 空间，然后重新启动。"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("TRAINDECK_LANG", "zh", "由用户指定"), ("LANG", "zh_CN.UTF-8", "由用户指定"), ("LANG", "en_US", "set by you")],
)
def test_messages_use_the_language_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    for variable in ("TRAINDECK_LANG", "LC_ALL", "LANG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, value)
    assert message("launcher.reason.chosen") == expected


def test_the_window_has_a_button_for_the_mirrors_and_the_terminal_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINDECK_LANG", "en")
    output = "error sending request for url"
    assert "setup --mirror" in str(messages.tool_error("It failed:", output))
    monkeypatch.setattr(messages, "EVENTS", [io.StringIO()])
    shown = str(messages.tool_error("It failed:", output))
    assert f"click {texts.get('installation.choose_mirror', 'en')}" in shown
    assert "setup --mirror" not in shown
