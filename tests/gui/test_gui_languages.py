"""English and Chinese: complete, switched while running, and nothing cut."""

from __future__ import annotations

import re

import msgspec
import pytest
from PySide6.QtWidgets import (
    QAbstractButton,
    QCheckBox,
    QComboBox,
    QLabel,
    QLineEdit,
    QSizePolicy,
    QStyle,
    QStyleOptionComboBox,
    QTabBar,
    QWidget,
)
from pytestqt.qtbot import QtBot

from app.core.log_store import LogStore
from app.pages.log.entry_texts import format_entry
from app.widgets import formatting
from app.widgets.basic import ElidedLabel
from tests.gui.conftest import MakeWindow
from trainer_core import protocol
from trainer_core.docgen import examples


def test_every_event_of_the_log_has_a_text(make_window: MakeWindow) -> None:
    make_window()
    for event in examples.EVENTS.values():
        entry = LogStore().add(event)
        assert entry is None or format_entry(entry), event


def test_the_log_reports_truncated_answers_of_an_evaluation(make_window: MakeWindow) -> None:
    controller = make_window()
    event = protocol.Eval(
        step=9, loss=1.0, perplexity=2.7, tokens=1, seconds=1, exact_match=0.5, bleu4=1.0, examples=64
    )
    whole = LogStore().add(event)
    cut = LogStore().add(msgspec.structs.replace(event, truncated_by_limit=3, truncated_by_context=2))
    assert whole is not None
    assert cut is not None
    assert "truncated" not in format_entry(whole)
    assert "truncated answers: 3 by eval_max_new_tokens, 2 by max_seq_len, of 64" in format_entry(cut)
    controller.set_language("zh")
    assert "截断" not in format_entry(whole)
    assert "64 个回答中被截断的：eval_max_new_tokens 3 个，max_seq_len 2 个" in format_entry(cut)


def test_the_language_is_switched_while_the_window_is_open(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    window = controller.window
    window.show_page("settings")
    qtbot.waitUntil(lambda: bool(window.advanced.fields))
    controller.form.set_text("batch_size", "0")
    controller.set_language("zh")
    assert window.run_bar.start.text() == "开始"
    assert window.tabs.tabText(0) == "图表"
    assert window.setup.data.list.item(0).text() == "Python 标准库（内置）"
    assert "批大小" in window.run_bar.reason_label.text()
    field = next(field for field in window.advanced.fields if field.knob.name == "batch_size")
    assert field.error.text() == "允许的值：整数，>= 1 且 <= 65536"
    controller.set_language("en")
    assert window.run_bar.start.text() == "Start"


def test_no_chinese_text_remains_after_switching_to_english(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("ok", "zh")
    window = controller.window
    for page in window.pages:
        window.show_page(page)
        qtbot.wait(20)
    qtbot.waitUntil(lambda: bool(window.advanced.fields))
    assert chinese(window) != []
    controller.set_language("en")
    for page in window.pages:
        window.show_page(page)
        qtbot.wait(20)
        assert chinese(window) == [], page


def chinese(window: QWidget) -> list[str]:
    """What the widgets in sight say in Chinese."""
    kinds = (QAbstractButton, QLabel, QComboBox, QLineEdit)
    widgets = [widget for kind in kinds for widget in window.findChildren(kind) if widget.isVisible()]
    said = [get() for widget in widgets for name in SAYING if (get := getattr(widget, name, None)) is not None]
    tabs = [tabs.tabText(place) for tabs in window.findChildren(QTabBar) for place in range(tabs.count())]
    return [text for text in (*said, *tabs) if re.search("[\u4e00-\u9fff]", text)]


SAYING = ("text", "currentText", "placeholderText", "toolTip", "accessibleName")


def test_a_message_names_the_field_where_a_terminal_would_name_the_flag(make_window: MakeWindow) -> None:
    controller = make_window()
    said = ("data.missing_columns", {"path": "a.parquet", "wanted": "text", "found": "question"})
    controller.set_language("en")
    assert "“Prompt column”" in formatting.localized_message(*said)
    controller.set_language("zh")
    assert "“提示列”" in formatting.localized_message(*said)
    assert "--" not in formatting.localized_message(*said)
    disk = formatting.localized_message("check.disk", {"needed_mib": 2, "free_mib": 1})
    assert "“保留最新”" in disk, disk
    assert "keep_last" not in disk


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("size", [(1280, 800), (1024, 700)])
def test_no_buttons_text_is_cut(make_window: MakeWindow, qtbot: QtBot, language: str, size: tuple[int, int]) -> None:
    controller = make_window("ok", language)
    window = controller.window
    window.resize(*size)
    for page in window.pages:
        window.show_page(page)
        nothing_is_cut(qtbot, window, page)
    tabs = window.findChild(QTabBar)
    assert tabs is not None
    assert tabs.width() <= window.tabs.width()


@pytest.mark.parametrize("size", [(1280, 720), (860, 560)])
def test_nothing_is_cut_after_the_language_and_the_theme_went_to_and_fro(
    make_window: MakeWindow, qtbot: QtBot, size: tuple[int, int]
) -> None:
    controller = make_window("ok", "zh")
    window = controller.window
    window.resize(*size)
    for page in window.pages:
        window.show_page(page)
        qtbot.wait(20)
    for language, theme in (("zh", "dark"), ("en", "dark"), ("zh", "light"), ("en", "light")):
        controller.set_language(language)  # type: ignore[arg-type]
        controller.set_theme(theme)  # type: ignore[arg-type]
        for page in window.pages:
            window.show_page(page)
            nothing_is_cut(qtbot, window, f"{page} {language} {theme}")


def nothing_is_cut(qtbot: QtBot, window: QWidget, where: str) -> None:
    """Once the page is laid out, which takes a few turns of the event loop: some are built in slices."""
    qtbot.wait(20)
    try:
        qtbot.waitUntil(lambda: cut(window) == [])
    finally:
        assert cut(window) == [], where


def cut(window: QWidget) -> list[str]:
    """The texts of buttons, choices and labels in sight that have less room than they need."""
    found = [each.text() for each in window.findChildren(QAbstractButton) if _is_cut(each, each.text())]
    found += [each.text() for each in window.findChildren(QLabel) if _is_cut(each, each.text())]
    return found + [each.currentText() for each in window.findChildren(QComboBox) if _has_no_room(each)]


def _is_cut(widget: QAbstractButton | QLabel, text: str) -> bool:
    """A label that breaks its lines, or says … where it has to, is never cut."""
    shortened = isinstance(widget, ElidedLabel) or (isinstance(widget, QLabel) and widget.wordWrap())
    if not widget.isVisible() or not text or shortened:
        return False
    hint = widget.minimumSizeHint() if isinstance(widget, QCheckBox) else widget.sizeHint()
    return widget.width() < hint.width()


def _has_no_room(choice: QComboBox) -> bool:
    """One that takes whatever room there is shows its text in full where it is pointed at."""
    if not choice.isVisible() or choice.sizePolicy().horizontalPolicy() is QSizePolicy.Policy.Ignored:
        return False
    option = QStyleOptionComboBox()
    choice.initStyleOption(option)
    control, part = QStyle.ComplexControl.CC_ComboBox, QStyle.SubControl.SC_ComboBoxEditField
    room = choice.style().subControlRect(control, option, part, choice).width()
    return room < choice.fontMetrics().horizontalAdvance(choice.currentText())
