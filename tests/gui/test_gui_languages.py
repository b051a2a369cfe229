"""English and Chinese: complete texts, switching, no clipped text."""

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

TEXT_GETTERS = ("text", "currentText", "placeholderText", "toolTip", "accessibleName")


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
    complete = LogStore().add(event)
    truncated = LogStore().add(msgspec.structs.replace(event, truncated_by_limit=3, truncated_by_context=2))
    assert complete is not None
    assert truncated is not None
    assert "truncated" not in format_entry(complete)
    assert "truncated answers: 3 by eval_max_new_tokens, 2 by max_seq_len, of 64" in format_entry(truncated)
    controller.set_language("zh")
    assert "截断" not in format_entry(complete)
    assert "64 个回答中被截断的：eval_max_new_tokens 3 个，max_seq_len 2 个" in format_entry(truncated)


def test_the_language_is_switched_while_the_window_is_open(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    window = controller.window
    window.show_page("settings")
    qtbot.waitUntil(lambda: bool(window.advanced.fields))
    controller.form.set_text("batch_size", "0")
    controller.set_language("zh")
    assert window.run_bar.start.text() == "开始"
    assert window.tabs.tabText(0) == "数据"
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
    assert chinese_texts(window) != []
    controller.set_language("en")
    for page in window.pages:
        window.show_page(page)
        qtbot.wait(20)
        assert chinese_texts(window) == [], page


def chinese_texts(window: QWidget) -> list[str]:
    """Texts of the visible widgets that contain Chinese characters."""
    kinds = (QAbstractButton, QLabel, QComboBox, QLineEdit)
    widgets = [widget for kind in kinds for widget in window.findChildren(kind) if widget.isVisible()]
    texts = [get() for widget in widgets for name in TEXT_GETTERS if (get := getattr(widget, name, None)) is not None]
    tabs = [bar.tabText(index) for bar in window.findChildren(QTabBar) for index in range(bar.count())]
    return [text for text in (*texts, *tabs) if re.search("[\u4e00-\u9fff]", text)]


def test_messages_name_fields_instead_of_command_line_flags(make_window: MakeWindow) -> None:
    controller = make_window()
    message = ("data.missing_columns", {"path": "a.parquet", "wanted": "text", "found": "question"})
    controller.set_language("en")
    assert "“Prompt column”" in formatting.localized_message(*message)
    controller.set_language("zh")
    assert "“提示列”" in formatting.localized_message(*message)
    assert "--" not in formatting.localized_message(*message)
    disk = formatting.localized_message("check.disk", {"needed_mib": 2, "free_mib": 1})
    assert "“保留最新”" in disk, disk
    assert "keep_last" not in disk


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("size", [(1280, 800), (1024, 700)])
def test_no_text_is_clipped(make_window: MakeWindow, qtbot: QtBot, language: str, size: tuple[int, int]) -> None:
    controller = make_window("ok", language)
    window = controller.window
    window.resize(*size)
    for page in window.pages:
        window.show_page(page)
        assert_no_clipped_text(qtbot, window, page)
    tabs = window.findChild(QTabBar)
    assert tabs is not None
    assert tabs.width() <= window.tabs.width()


@pytest.mark.parametrize("size", [(1280, 720), (895, 560)])
def test_no_text_is_clipped_after_switching_language_and_theme(
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
            assert_no_clipped_text(qtbot, window, f"{page} {language} {theme}")


def assert_no_clipped_text(qtbot: QtBot, window: QWidget, context: str) -> None:
    """Wait for the layout first: some pages are built in idle time."""
    qtbot.wait(20)
    try:
        qtbot.waitUntil(lambda: clipped_texts(window) == [])
    finally:
        assert clipped_texts(window) == [], context


def clipped_texts(window: QWidget) -> list[str]:
    """Texts of visible buttons, labels and combo boxes that are narrower than their text."""
    widgets: list[QAbstractButton | QLabel] = [*window.findChildren(QAbstractButton), *window.findChildren(QLabel)]
    texts = [widget.text() for widget in widgets if _is_clipped(widget)]
    return texts + [combo.currentText() for combo in window.findChildren(QComboBox) if _is_combo_clipped(combo)]


def _is_clipped(widget: QAbstractButton | QLabel) -> bool:
    """Labels that wrap or elide their text are never clipped."""
    fits_any_width = isinstance(widget, ElidedLabel) or (isinstance(widget, QLabel) and widget.wordWrap())
    if not widget.isVisible() or not widget.text() or fits_any_width:
        return False
    hint = widget.minimumSizeHint() if isinstance(widget, QCheckBox) else widget.sizeHint()
    return widget.width() < hint.width()


def _is_combo_clipped(combo: QComboBox) -> bool:
    """A combo box with an ignored size policy is skipped: its tooltip has the complete text."""
    if not combo.isVisible() or combo.sizePolicy().horizontalPolicy() is QSizePolicy.Policy.Ignored:
        return False
    option = QStyleOptionComboBox()
    combo.initStyleOption(option)
    control, part = QStyle.ComplexControl.CC_ComboBox, QStyle.SubControl.SC_ComboBoxEditField
    available = combo.style().subControlRect(control, option, part, combo).width()
    return available < combo.fontMetrics().horizontalAdvance(combo.currentText())
