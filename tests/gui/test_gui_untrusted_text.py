"""Names, texts and messages from untrusted sources are displayed as plain text, never as HTML."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QListWidget
from pytestqt.qtbot import QtBot

from app.services.trainer_process import TrainerProcess
from app.widgets import basic
from app.widgets.basic import ElidedLabel, plain_tooltip
from tests.gui.conftest import MakeWindow
from trainer_core import protocol

HTML = '<img src="//evil/share/x.png"><b>bold</b><script>x</script>'


def test_no_label_detects_html_automatically(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("ok")
    labels = [label for label in controller.window.findChildren(QLabel) if label.text()]
    assert len(labels) > 50
    auto = [label for label in labels if label.textFormat() is Qt.TextFormat.AutoText]
    assert [(label.objectName(), label.text(), type(label.parent()).__name__) for label in auto] == []


def test_html_is_displayed_as_plain_text(qtbot: QtBot) -> None:
    for widget in (basic.label(), ElidedLabel()):
        qtbot.addWidget(widget)
        widget.setText(HTML)
        assert widget.textFormat() is Qt.TextFormat.PlainText
    narrow = ElidedLabel()
    qtbot.addWidget(narrow)
    narrow.resize(20, 20)
    narrow.setText(HTML)
    assert "<img" not in narrow.toolTip()
    assert "&lt;img" in narrow.toolTip()
    assert plain_tooltip("a < b & c.txt") == '<p style="white-space: pre-wrap">a &lt; b &amp; c.txt</p>'
    assert plain_tooltip("D:/a & b.txt") == "D:/a & b.txt"


def test_a_file_whose_name_is_html_has_a_plain_tooltip(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    controller = make_window("ok")
    controller.form.add_data([f"/data/{HTML}.txt"])
    sources: QListWidget = controller.window.setup.data.list
    item = sources.item(sources.count() - 1)
    assert HTML.rpartition("/")[2] in item.text()
    assert "<img" not in item.toolTip()


def test_messages_samples_and_failures_are_plain_text(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("ok")
    controller.active_run.handle_event(
        protocol.Warn(code="checkpoint.skipped", params={"path": HTML, "reason": HTML}, detail=HTML)
    )
    labels = [label for label in controller.window.banners.findChildren(QLabel) if HTML in label.text()]
    assert labels
    assert all(label.textFormat() is Qt.TextFormat.PlainText for label in labels)
    controller.window.show_page("chat")
    controller.active_run.record.samples.append(protocol.Sample(step=1, prompt=HTML, text=HTML))
    controller.window.chat.show_samples(True)
    controller.render()
    assert controller.window.chat.samples.text.toPlainText().count("<img") == 2


SPECIAL_ARGUMENTS = [
    "$(touch executed) `touch executed`.txt",
    "a; rm -rf b & touch executed | cat > c.txt",
    "%PATH% !PATH! ^ \"quoted\" 'single' \\",
    "--output=plain",
    "-c import os",
    "数据 🙂\u200b.txt",
    "",
    "line\nbreak.txt",
]


def test_names_with_special_characters_are_passed_to_the_trainer_unchanged(qtbot: QtBot) -> None:
    lines: list[str] = []
    process = TrainerProcess(command=[sys.executable, "-X", "utf8", "-c", "import sys; print(ascii(sys.argv[1:]))"])
    process.output_received.connect(lines.append)
    with qtbot.waitSignal(process.finished, timeout=20_000):
        process.start(SPECIAL_ARGUMENTS)
    (line,) = lines
    assert ast.literal_eval(line)[: len(SPECIAL_ARGUMENTS)] == SPECIAL_ARGUMENTS
