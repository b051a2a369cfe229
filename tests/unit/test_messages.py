"""Message catalogue: complete in both languages, robust to missing parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer_core.messages import (
    ExitCode,
    TraindeckError,
    codes,
    format_message,
    is_known,
    template,
    terminal_language,
)
from trainer_core.messages.exit_codes import exit_code_of

ROOT = Path(__file__).resolve().parents[2]
SENDERS = {"TraindeckError", "warn", "advise", "Warn", "Advice", "Error"}


def codes_in(source: Path) -> Iterator[tuple[str, int]]:
    """Yield code and line of each string literal that is the first or the `code` argument of a call to SENDERS."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name not in SENDERS:
            continue
        for value in [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "code")]:
            for leaf in ast.walk(value):  # also both branches of `a if … else b`
                if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                    yield leaf.value, node.lineno


def test_every_code_in_the_sources_is_in_the_catalogue() -> None:
    emitted = [
        (f"{path.relative_to(ROOT)}:{line}", code)
        for folder in ("trainer_core", "app")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for code, line in codes_in(path)
    ]
    assert len(emitted) > 20
    assert [(location, code) for location, code in emitted if not is_known(code)] == []


def test_every_message_is_formatted_without_parameters() -> None:
    for code in codes():
        for language in ("en", "zh"):
            assert format_message(code, {}, language)


def test_every_error_has_an_action() -> None:
    warnings = {"data.tokenizer_extended", "model.through_transformers"}
    errors = [code for code in codes() if exit_code_of(code) is not ExitCode.FAILED and code not in warnings]
    assert len(errors) > 80
    for code in errors:
        assert template(code, "en")[1], code
        assert template(code, "zh")[1], code


def test_a_missing_parameter_is_shown_as_a_question_mark() -> None:
    assert "“?”" in format_message("config.unknown_preset", {}, "en")


def test_a_parameter_may_contain_braces() -> None:
    assert "{x}" in format_message("data.not_found", {"path": "{x}"}, "en")


def test_large_numbers_are_grouped() -> None:
    assert "1,234,567" in format_message("data.few_tokens", {"tokens": 1234567, "parameters": 1}, "en")
    assert "process 12345" in format_message("run.in_use", {"pid": "12345", "path": "x"}, "en")


def test_an_unknown_code_is_shown_with_its_parameters() -> None:
    assert format_message("new.code", {"a": 1, "b": "x"}, "zh") == "new.code (a=1, b=x)"
    assert TraindeckError("new.code").exit_code == ExitCode.FAILED


def test_an_error_is_formatted_in_english() -> None:
    error = TraindeckError("data.not_found", path="a.txt")
    assert str(error).startswith("The data path a.txt does not exist.")
    assert error.exit_code == ExitCode.DATA


@pytest.mark.parametrize(
    ("value", "language"), [("zh", "zh"), ("zh_CN.UTF-8", "zh"), ("en_US.UTF-8", "en"), ("C.UTF-8", "en")]
)
def test_the_terminal_language_follows_the_environment(
    value: str, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINDECK_LANG", value)
    assert terminal_language() == language


def test_the_full_stop_of_a_reason_is_removed() -> None:
    """Windows messages in Chinese end with a full stop. Python removes that of English messages."""
    text = format_message("disk.not_writable", {"path": "a?", "reason": "文件名、目录名或卷标语法不正确。"}, "zh")
    assert "不正确。请" in text
    assert ".." not in format_message("disk.not_writable", {"path": "a?", "reason": "Not a name."}, "en")


def test_amounts_from_1_gib_are_shown_in_gib() -> None:
    params = {"path": "D:", "needed_mib": 13_005, "free_mib": 12_996, "saved": 1, "step": 2}
    for code in (
        "check.nothing_fits",
        "check.disk",
        "disk.full",
        "export.disk_full",
        "disk.waiting",
        "disk.unsaved",
        "pause.memory_taken",
    ):
        for language in ("en", "zh"):
            text = format_message(code, params, language)
            assert "12.70 GiB" in text
            assert "12.69 GiB" in text
            assert "MiB" not in text
    assert "1023 MiB 显存，其他程序只留下 1.00 GiB。" in format_message(
        "pause.memory_taken", {"needed_mib": 1023, "free_mib": 1024}, "zh"
    )


def test_texts_do_not_repeat_the_unit_of_mib_parameters() -> None:
    texts = [text for code in codes() for language in ("en", "zh") for text in template(code, language)]
    assert not [text for text in texts if "_mib} MiB" in text]
