"""The Data page: previews in the background, cached reports, estimates and samples."""

from __future__ import annotations

from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path

import msgspec
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QPainter, QPicture, QTextCursor
from PySide6.QtWidgets import QFrame, QLabel, QTextEdit
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.preview_keys import PreviewResult
from app.pages.data.histogram import Histogram, position
from app.pages.data.page import DataPage
from app.theme.palette import DARK, LIGHT, Palette
from app.widgets.basic import ElidedLabel
from tests.gui import pair_samples
from tests.gui.conftest import MakeWindow, click, has_golden_font
from trainer_core import protocol
from trainer_core.data_report_texts import key_figures, table_rows
from trainer_core.docgen.examples import EVENTS

REPORT: protocol.DataReport = EVENTS[protocol.DataReport]


def run_preview(controller: Controller, qtbot: QtBot) -> None:
    """Click "Preview" and wait for the result."""
    controller.window.show_page("data")
    click(qtbot, controller.window.data.preview_button)
    qtbot.waitUntil(lambda: controller.preview_job.running is None, timeout=30_000)


def show_report(controller: Controller, report: protocol.DataReport) -> DataPage:
    """Show a report as the result of a preview."""
    controller.window.show_page("data")
    key = controller.preview_job.compute_key()
    controller.preview_job.result = PreviewResult(key, protocol.DataReport, report=report)
    controller.preview_job.changed.emit()
    return controller.window.data


def x_labels(histogram: Histogram) -> list[str]:
    """Labels of the x axis, from left to right."""
    picture = QPicture()
    painter = QPainter(picture)
    _, _, texts = histogram.getPlotItem().getAxis("bottom").generateDrawSpecs(painter)
    painter.end()
    return [text for rect, _, text in sorted(texts, key=lambda spec: spec[0].left())]


def backgrounds(controller: Controller) -> dict[str, str]:
    """Background color of each character of the displayed sample."""
    document = controller.window.data.samples.text.document()
    colors = {}
    for index in range(document.characterCount() - 1):
        cursor = QTextCursor(document)
        cursor.setPosition(index)
        cursor.setPosition(index + 1, QTextCursor.MoveMode.KeepAnchor)
        colors[cursor.selectedText()] = cursor.charFormat().background().color().name()
    return colors


def test_the_page_has_a_placeholder_before_the_first_preview(make_window: MakeWindow) -> None:
    window = make_window().window
    page = window.data
    window.show_page("data")
    assert page._placeholder.isVisible()
    assert page._placeholder.text().startswith("Preview the data before training")
    assert page.preview_button.isEnabled()
    assert not page.cancel_button.isVisible()
    assert not page.hint.isVisible()


def test_a_preview_displays_report_warnings_and_samples(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(preview="preview")
    run_preview(controller, qtbot)
    page = controller.window.data
    assert page.tiles["documents"].value.text() == "≈ 10M"
    assert page.tiles["epoch"].value.text() == "≈ 98,951"
    assert "Read 16 MiB of 1.0 GiB" in page.status.text()
    assert "402 of 153,450 samples were longer than 256 tokens" in page.warnings.text()
    assert page.sources.rowCount() == 1
    assert page.sources.item(0, 2).text() == "prompt: question, response: answer"
    assert page.histogram is not None
    assert not page.bar.isVisible()
    assert not page.failure.isVisible()
    text = page.samples.text.toPlainText()
    assert text == "<|im_start|>user↵\n2+2?<|im_end|>↵\n<|im_start|>assistant↵\n4<|im_end|>"
    assert backgrounds(controller)["4"] in (LIGHT.loss_token_a, LIGHT.loss_token_b)
    assert backgrounds(controller)["2"] in (LIGHT.context_token_a, LIGHT.context_token_b)


def test_changed_settings_mark_the_report_as_outdated(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(preview="preview")
    page, form = controller.window.data, controller.form
    run_preview(controller, qtbot)
    form.set_text("learning_rate", "1e-4")
    assert not page.hint.isVisible()
    form.set_text("batch_size", "3")
    assert page.hint.isVisible()
    assert page.tiles["documents"].value.text() == "≈ 10M"
    form.reset("batch_size")
    assert not page.hint.isVisible()
    form.add_data(["/somewhere/else.txt"])
    assert page.hint.isVisible()


def test_a_changed_file_marks_the_report_as_outdated(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("before", encoding="utf-8")
    controller = make_window(preview="preview")
    controller.form.add_data([str(file)])
    run_preview(controller, qtbot)
    assert not controller.window.data.hint.isVisible()
    summary = controller.window.setup.data.summary
    qtbot.waitUntil(lambda: "1 file" in summary.text(), timeout=10_000)
    file.write_text("something else", encoding="utf-8")
    controller.setup_controller._on_application_state(Qt.ApplicationState.ApplicationActive)
    qtbot.waitUntil(controller.window.data.hint.isVisible, timeout=10_000)
    assert "have changed since this preview" in controller.window.data.hint.text()
    run_preview(controller, qtbot)
    assert not controller.window.data.hint.isVisible()


def test_a_preview_can_be_cancelled(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(preview="slow_preview")
    page = controller.window.data
    controller.window.show_page("data")
    click(qtbot, page.preview_button)
    qtbot.waitUntil(lambda: page.bar.value() == 500, timeout=30_000)
    assert page.cancel_button.isVisible()
    assert not page.preview_button.isEnabled()
    click(qtbot, page.cancel_button)
    qtbot.waitUntil(lambda: controller.preview_job.running is None, timeout=30_000)
    assert page.preview_button.isEnabled()
    assert not page.failure.isVisible()
    assert not page.bar.isVisible()


def test_an_unresponsive_preview_is_killed_when_cancelled(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(preview="child_process")
    controller.window.show_page("data")
    click(qtbot, controller.window.data.preview_button)
    qtbot.waitUntil(lambda: controller.preview_job.process.pid is not None)
    controller.preview_job.cancel()
    qtbot.waitUntil(lambda: controller.preview_job.running is None, timeout=30_000)
    assert controller.window.data.preview_button.isEnabled()


@pytest.mark.parametrize(
    ("mode", "error"), [("error", "C:\\数据\\a.txt does not exist"), ("traceback", "uncaught test error")]
)
def test_a_failed_preview_displays_the_error(make_window: MakeWindow, qtbot: QtBot, mode: str, error: str) -> None:
    controller = make_window(preview=mode)
    run_preview(controller, qtbot)
    page = controller.window.data
    assert page.failure.isVisible()
    assert error in page.failure.text()
    controller.set_language("zh")
    assert ("不存在" if mode == "error" else "意外退出") in page.failure.text()


def test_training_continues_during_a_preview(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("slow_stop", preview="preview")
    click(qtbot, controller.window.run_bar.start)
    qtbot.waitUntil(lambda: controller.active_run.machine.step > 2, timeout=30_000)
    run_preview(controller, qtbot)
    assert controller.active_run.machine.is_active
    step = controller.active_run.machine.step
    qtbot.waitUntil(lambda: controller.active_run.machine.step > step, timeout=30_000)


def test_the_data_of_the_displayed_run_is_summarized(make_window: MakeWindow) -> None:
    controller = make_window()
    controller.window.show_page("data")
    assert not controller.window.data.run.isVisible()
    controller.active_run.handle_event(EVENTS[protocol.Ready])
    controller.render()
    assert "11,482,330 tokens: 700 steps per epoch, 2,100 in total" in controller.window.data.run.text()


def test_the_preview_button_is_disabled_without_data(make_window: MakeWindow) -> None:
    controller = make_window()
    controller.window.show_page("data")
    controller.form.set_data([])
    assert not controller.window.data.preview_button.isEnabled()
    assert controller.window.data.preview_button.toolTip()


def test_the_page_follows_language_and_theme(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(preview="preview")
    run_preview(controller, qtbot)
    page = controller.window.data
    controller.set_language("zh")
    assert page.tiles["tokens"].title.text() == "词元"
    assert page.tiles["tokens"].value.text() == "≈ 6.375 亿"
    assert "样本中有 402 个" in page.warnings.text()
    controller.set_theme("dark")
    assert backgrounds(controller)["4"] in (DARK.loss_token_a, DARK.loss_token_b)
    assert page.samples.text.document().characterCount() > 40
    picture = page.grab().toImage()
    assert picture.pixelColor(3, picture.height() - 3) in (QColor(DARK.window), QColor(DARK.surface))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_content_fits_the_width_of_the_page(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    controller = make_window(language=language)
    page = show_report(controller, REPORT)
    viewport, values = page._area.viewport(), [tile.value for tile in page.tiles.values()]
    for size in ((1280, 720), (1024, 700), (895, 560)):
        controller.window.resize(*size)
        qtbot.waitUntil(lambda: page._content.width() <= viewport.width(), timeout=2000)
        assert page._content.minimumSizeHint().width() <= viewport.width(), size
        qtbot.waitUntil(lambda: all(value.width() >= value.sizeHint().width() for value in values), timeout=2000)


def test_buttons_show_the_next_and_previous_sample(make_window: MakeWindow) -> None:
    card = make_window().window.data.samples
    first = protocol.SampleView(tokens=[protocol.Token("a", 1, True, False, 0)], length=1)
    second = protocol.SampleView(
        tokens=[protocol.Token("b", 2, False, False, 0), protocol.Token("c", 3, True, False, 1)], length=9
    )
    card.display([first, second])
    assert (card.back.isEnabled(), card.next.isEnabled()) == (False, True)
    card.next.click()
    assert (card.back.isEnabled(), card.next.isEnabled()) == (True, False)
    assert card.text.toPlainText() == "b\nDocument 2\nc  … and 7 more tokens"
    card.back.click()
    assert card.text.toPlainText() == "a"


def marked_texts(text: QTextEdit, color: str) -> list[str]:
    """Adjacent characters with this background."""
    document, found = text.document(), []
    for index in range(document.characterCount() - 1):
        cursor = QTextCursor(document)
        cursor.setPosition(index)
        cursor.setPosition(index + 1, QTextCursor.MoveMode.KeepAnchor)
        background = cursor.charFormat().background()
        found.append((background.style() != Qt.BrushStyle.NoBrush and background.color().name(), cursor.selectedText()))
    return ["".join(text for _, text in group) for mark, group in groupby(found, itemgetter(0)) if mark == color]


@pytest.mark.parametrize(("theme", "palette"), [("light", LIGHT), ("dark", DARK)])
def test_the_answers_of_a_pair_are_side_by_side_with_their_differences_marked(
    make_window: MakeWindow, qtbot: QtBot, theme: str, palette: Palette
) -> None:
    controller = make_window(theme=theme)
    samples = show_report(controller, pair_samples.REPORT).samples
    chosen, rejected = samples.texts
    qtbot.waitUntil(rejected.isVisible)
    assert chosen.geometry().right() < rejected.geometry().left()
    assert chosen.geometry().top() == rejected.geometry().top()
    assert "Chosen" in samples.headings[0].text()
    assert palette.bad in samples.headings[1].text()
    assert marked_texts(chosen, palette.loss_token_b) == [
        "scatters",
        "on",
        "molecules of the air",
        "scatters",
        "蓝",
        "的",
    ]
    assert marked_texts(rejected, palette.rejected_token) == [
        "is", "reflected by", "oceans", "is reflected", "海的颜",
    ]  # fmt: skip
    controller.window.resize(895, 560)
    controller.window.data.samples.set_narrow(True)
    qtbot.waitUntil(lambda: chosen.geometry().bottom() < rejected.geometry().top())


def test_a_labelled_answer_has_its_label_and_no_marks(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(language="zh")
    samples = show_report(controller, pair_samples.REPORT).samples
    samples.next.click()
    assert "较差回答" in samples.headings[0].text()
    assert [text.isVisible() for text in samples.texts] == [True, False]
    assert marked_texts(samples.text, LIGHT.rejected_token) == []
    samples.display([pair_samples.sample_of(("好", True), ("坏", False), hidden=70)])
    assert samples.text.toPlainText().startswith("… <|im_start|>user")
    samples.display(REPORT.samples)
    assert [text.isVisible() for text in samples.texts] == [True, False]
    assert not samples.headings[0].isVisible()
    qtbot.waitUntil(lambda: samples.text.width() > 0.8 * samples.width())


def test_answers_are_counted_in_the_statistics() -> None:
    rows = dict(table_rows(pair_samples.REPORT, "en"))
    assert rows["Rejected answers"] == "153,450, 48.2 tokens on average"
    assert rows["Contradicting rows"] == "12 (< 0.01 %)"
    assert rows["Equal answers (left out)"] == "38 (0.025 %)"
    figures = key_figures(pair_samples.REPORT, "en")
    assert figures["samples"].caption == "at most 512 tokens each"


def test_the_sequence_length_is_interpolated_between_bin_edges() -> None:
    edges = [0, 1, 2, 4, 8]
    assert position(edges, 4) == 3.0
    assert position(edges, 6) == 3.5
    assert position(edges, 9) is None
    assert position([], 4) is None


def test_a_complete_report_counts_full_and_short_steps() -> None:
    report = msgspec.structs.replace(REPORT, complete=True)
    assert key_figures(report, "en")["epoch"][1:3] == (98_951, "98,950 full, one smaller")


def test_skipped_tool_messages_are_counted() -> None:
    report = msgspec.structs.replace(REPORT, skipped_turns=2400)
    assert ("Skipped tool messages", "2,400") in table_rows(report, "en")
    assert "Skipped tool messages" not in dict(table_rows(REPORT, "en"))


def test_a_failed_preview_hides_the_previous_report(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    data = tmp_path / "short.txt"
    data.write_text("a line of text\n" * 200, encoding="utf-8")
    controller = make_window(preview=None)
    page, form = controller.window.data, controller.form
    form.set_data([str(data)])
    form.set_text("vocab_size", "300")
    run_preview(controller, qtbot)
    assert page.tiles["documents"].isVisible()
    data.unlink()
    run_preview(controller, qtbot)
    assert page.failure.isVisible()
    assert "does not exist" in page.failure.text()
    for widget in (page.tiles["documents"], page.samples, page.sources, page.hint, page._placeholder):
        assert not widget.isVisible()
    assert page.status.text() == ""
    assert page.failure.y() < page.height() / 4
    form.set_data(["builtin:tasks"])
    assert not page.failure.isVisible()  # the error was about other data
    assert not page.samples.isVisible()
    assert page._placeholder.isVisible()


def test_a_new_report_scrolls_to_the_top(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    page = show_report(controller, REPORT)
    scroll = page._area.verticalScrollBar()
    qtbot.waitUntil(lambda: scroll.maximum() > 50)
    scroll.setValue(50)
    controller.preview_job.changed.emit()
    controller.set_language("zh")
    assert scroll.value() == 50  # the same report keeps the position
    show_report(controller, msgspec.structs.replace(REPORT, duplicates=38))
    assert scroll.value() == 0


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("complete", [True, False])
def test_texts_of_cards_are_not_clipped(make_window: MakeWindow, qtbot: QtBot, language: str, complete: bool) -> None:
    controller = make_window(language=language)
    page = show_report(
        controller,
        msgspec.structs.replace(REPORT, complete=complete, packed_sequences=81_207, fill=0.98, fill_unpacked=0.3),
    )
    for size in ((1280, 800), (1024, 700)):
        controller.window.resize(*size)
        qtbot.wait(50)
        children = [label for card in page.findChildren(QFrame, "card") for label in card.findChildren(QLabel)]
        labels = [label for label in children if label.isVisible() and label.text().strip()]
        assert len(labels) > 3 * len(page.tiles)
        for label in [*labels, page.status]:
            required = label.minimumSizeHint().width()
            if isinstance(label, ElidedLabel) and has_golden_font():  # a wider font is elided
                required = label.fontMetrics().horizontalAdvance(label.text())
            assert label.contentsRect().width() >= required, label.text()


@pytest.mark.parametrize(("language", "text"), [("en", "can change slightly"), ("zh", "略有变化")])
def test_figures_are_exact_only_with_an_existing_tokenizer(make_window: MakeWindow, language: str, text: str) -> None:
    controller = make_window(language=language)
    page = show_report(controller, msgspec.structs.replace(REPORT, complete=True))
    assert text in page.status.text()
    show_report(controller, msgspec.structs.replace(REPORT, complete=True, tokenizer="t.json"))
    assert ("All figures are exact" if language == "en" else "准确值") in page.status.text()


def test_a_report_without_documents_has_no_histogram(make_window: MakeWindow) -> None:
    page = show_report(make_window(), msgspec.structs.replace(REPORT, lengths=[], samples=[]))
    assert page.histogram is not None
    assert not page.histogram.isVisible()
    assert not page.samples.isVisible()


def test_both_ends_of_the_length_axis_are_labelled(make_window: MakeWindow, qtbot: QtBot) -> None:
    make_window()
    histogram = Histogram(LIGHT)
    qtbot.addWidget(histogram)
    histogram.show()
    for edges in ([992, 1024], [1016, 1024, 1032], list(range(1000, 1034)), [0, 1, 2, *range(100_000, 100_037)]):
        bins = [protocol.LengthBin(start=a, stop=b, documents=5) for a, b in pairwise(edges)]
        for width in (300, 420, 700):
            histogram.resize(width, 200)
            histogram.show_bins(bins, 256, cut=False)
            qtbot.wait(20)
            labels = x_labels(histogram)
            assert (labels[0], labels[-1]) == (f"{edges[0]:,}", f"{edges[-1]:,}")
            assert len(labels) <= 7
