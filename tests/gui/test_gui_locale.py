"""Numbers, dates and the dialogs of Qt follow the language of the window."""

from __future__ import annotations

import re
import time

import pytest
from PySide6.QtCore import QCoreApplication, QLocale
from PySide6.QtWidgets import QDialogButtonBox, QFileDialog, QLabel, QLineEdit, QMessageBox
from pytestqt.qtbot import QtBot

from app.texts import Translator
from app.widgets import formatting
from tests.gui.conftest import MakeWindow


@pytest.mark.parametrize("language", ["en", "zh"])
def test_numbers_have_the_format_of_the_locale(qapp: object, language: str) -> None:
    translator = Translator()
    translator.set_language("zh" if language == "zh" else "en")
    locale = QLocale()
    for value in (0, 7, 999, 1000, 1_234_567, 12_345_678_901):
        assert formatting.format_count(value) == formatting.format_rate(value) == locale.toString(value)
    assert formatting.format_loss(2.34567) == locale.toString(2.34567, "f", 4)
    assert formatting.format_bytes(1.5 * 1024**3) == f"{locale.toString(1.5, 'f', 1)} GiB"
    translator.set_language("en")


def test_dates_have_the_format_of_the_language(qapp: object) -> None:
    translator = Translator()
    past = time.mktime((2025, 3, 9, 21, 5, 0, 0, 0, -1))
    now = time.time()
    assert formatting.format_timestamp(past) == "9 Mar 2025 21:05"
    assert formatting.format_timestamp(now).startswith("today ")
    translator.set_language("zh")
    assert formatting.format_timestamp(past) == "2025/3/9 21:05"
    assert formatting.format_timestamp(now).startswith("今天")
    assert formatting.format_clock_time(past) == "2025/3/9 21:05"
    translator.set_language("en")


def test_qt_dialogs_follow_the_language(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(language="zh")
    assert message_box_buttons(qtbot) == {"是(&Y)", "否(&N)", "取消", "保存"}
    assert "文件名称(&N)：" in file_dialog_labels(qtbot)
    assert not [text for text in file_dialog_labels(qtbot) if re.search("[a-z]{2}", text)]
    controller.set_language("en")
    assert message_box_buttons(qtbot) == {"&Yes", "&No", "Cancel", "Save"}
    assert "File &name:" in file_dialog_labels(qtbot)


def message_box_buttons(qtbot: QtBot) -> set[str]:
    standard = QMessageBox.StandardButton
    box = QMessageBox()
    qtbot.addWidget(box)
    box.setStandardButtons(standard.Yes | standard.No | standard.Cancel | standard.Save)
    return {button.text() for button in box.findChild(QDialogButtonBox).buttons()}


def file_dialog_labels(qtbot: QtBot) -> set[str]:
    dialog = QFileDialog()
    dialog.setOption(QFileDialog.Option.DontUseNativeDialog)
    qtbot.addWidget(dialog)
    return {label.text() for label in dialog.findChildren(QLabel)}


def test_the_size_column_of_the_file_dialog_is_translated(make_window: MakeWindow) -> None:
    make_window(language="zh")
    assert QCoreApplication.translate("QFileSystemModel", "Size") == "大小"


def test_the_context_menu_of_a_text_field_is_translated(make_window: MakeWindow, qtbot: QtBot) -> None:
    make_window(language="zh")
    field = QLineEdit()
    qtbot.addWidget(field)
    menu = field.createStandardContextMenu()
    texts = " ".join(action.text() for action in menu.actions())
    assert "粘贴" in texts
    assert "全选" in texts
    menu.deleteLater()


def test_setting_values_have_the_notation_of_the_form() -> None:
    rates = [formatting.format_setting_value("learning_rate", value) for value in (3e-05, 0.006, 0.012, 1.0)]
    assert rates == ["3e-5", "6e-3", "0.012", "1"]
    assert [formatting.format_setting_value("batch_size", 16), formatting.format_setting_value("compile", "auto")] == [
        "16",
        "auto",
    ]
