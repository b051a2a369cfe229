"""Samples on the chat page: by step or by prompt."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.pages.chat.samples_view import SamplesView
from tests.events import hello, rollouts
from tests.gui.conftest import MakeWindow, click, horizontal_extent
from trainer_core.protocol import RewardedAnswer, Sample


def open_page(make_window: MakeWindow, qtbot: QtBot) -> SamplesView:
    controller = make_window()
    for step in (100, 200, 300):
        for prompt in ("def ", "import os\n"):
            controller.active_run.record.samples.append(
                Sample(step=step, prompt=prompt, text=f"{prompt.strip()}-{step}")
            )
    controller.window.show_page("chat")
    click(qtbot, controller.window.chat.modes["samples"])
    controller.render()
    return controller.window.chat.samples


def lines(page: SamplesView) -> list[str]:
    return [line for line in page.text.toPlainText().splitlines() if line]


def test_the_newest_samples_are_at_the_top(make_window: MakeWindow, qtbot: QtBot) -> None:
    page = open_page(make_window, qtbot)
    assert [line for line in lines(page) if line.startswith("Step")] == [
        f"Step {step}" for step in (300, 300, 200, 200, 100, 100)
    ]


def test_samples_are_grouped_by_prompt(make_window: MakeWindow, qtbot: QtBot) -> None:
    page = open_page(make_window, qtbot)
    page.order.setCurrentIndex(1)
    page.order.activated.emit(1)
    assert lines(page)[:7] == [
        "def  3 samples, steps 100 to 300",
        "Step 300",
        "def def-300",
        "Step 200",
        "def def-200",
        "Step 100",
        "def def-100",
    ]
    assert lines(page)[7] == "import os  3 samples, steps 100 to 300"


def test_samples_that_a_resumed_trainer_repeats_replace_the_earlier_ones(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    record, page = controller.active_run.record, controller.window.chat.samples
    controller.window.show_page("chat")
    click(qtbot, controller.window.chat.modes["samples"])

    def train(first_step: int, process: str) -> list[str]:
        """Add samples and a rewarded answer from a step on. Returns the displayed texts, newest first."""
        for step in range(first_step, 100, 20):
            record.add(Sample(step=step, prompt="def ", text=f"{process}: {step}"))
        answer = RewardedAnswer(prompt="5 + 5?", reference="10", text=f"{process}: 10", reward=1.0)
        record.add(rollouts(90, samples=[answer]))
        controller.render()
        return [line[line.index(" ") :].strip() for line in lines(page) if " process: " in line]

    record.add(hello())
    assert train(20, "1st process") == [f"1st process: {text}" for text in (10, 80, 60, 40, 20)]
    record.add(hello(resumed_from_step=50))
    texts = train(60, "2nd process")
    assert texts == ["2nd process: 10", "2nd process: 80", "2nd process: 60", "1st process: 40", "1st process: 20"]
    record.add(hello())
    assert train(20, "3rd process") == [f"3rd process: {text}" for text in (10, 80, 60, 40, 20)]


def test_a_new_sample_does_not_move_the_visible_text(make_window: MakeWindow, qtbot: QtBot) -> None:
    page = open_page(make_window, qtbot)
    samples = page._samples
    assert isinstance(samples, list)
    samples += [Sample(step=step, prompt="def ", text=f"{step}a\n{step}b\n{step}c") for step in range(400, 460)]
    page.display(samples, can_request=False)
    bar, center = page.text.verticalScrollBar(), page.text.viewport().rect().center()

    def text_at_center() -> str:
        return page.text.cursorForPosition(center).block().text()

    qtbot.waitUntil(lambda: bar.maximum() > 1000)
    bar.setValue(700)
    before = text_at_center()
    assert before
    samples.append(Sample(step=460, prompt="def ", text="a\nb\nc\n"))
    page.display(samples, can_request=False)
    assert text_at_center() == before


def test_a_button_opens_the_sample_prompts_setting(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    controller.window.activateWindow()
    controller.window.show_page("chat")
    click(qtbot, controller.window.chat.modes["samples"])
    page = controller.window.chat.samples
    click(qtbot, page.set_prompts_button)
    qtbot.waitUntil(
        lambda: (focus := QApplication.focusWidget()) is not None and "sample_prompts" in focus.objectName()
    )
    assert controller.window.tabs.currentWidget() is controller.window.pages["settings"]


def test_a_sample_is_compared_with_its_expected_answer(make_window: MakeWindow, qtbot: QtBot) -> None:
    page = open_page(make_window, qtbot)
    page.display([Sample(step=1, prompt="4 + 9?", text="13", expected="13")], can_request=False)
    assert lines(page) == ["Step 1", "4 + 9?", "13", "matches the expected answer"]


def test_answers_with_rewards_stand_below_their_prompt_the_best_first(make_window: MakeWindow, qtbot: QtBot) -> None:
    page = open_page(make_window, qtbot)
    answers = [("17", "13", 0.0), ("13", "13", 1.0), ("7", "7", 1.0), ("7", "7", 1.0)]
    samples = [
        RewardedAnswer(
            prompt="4 + 9?" if reference == "13" else "3 + 4?", text=text, reference=reference, reward=reward
        )
        for text, reference, reward in answers
    ]
    page.display([Sample(step=1, prompt="5 + 5?", text="10")], [rollouts(2, samples=samples)], can_request=False)
    assert lines(page) == [
        "Step 2, answers to learn from", "4 + 9?", "expected: 13", "1.00  13", "0.00  17",
        "Step 2, answers to learn from", "3 + 4?", "expected: 7", "1.00  7", "1.00  7",
        "Step 1", "5 + 5?10",
    ]  # fmt: skip
    page.order.setCurrentIndex(1)
    page.order.activated.emit(1)
    assert lines(page)[-5:] == ["Step 2, answers to learn from", "3 + 4?", "expected: 7", "1.00  7", "1.00  7"]
    colors = page.text.colors
    assert [color_of(page, text) for text in ("1.00  13", "0.00  17", "1.00  7")] == [
        colors.good, colors.warn, colors.muted,
    ]  # fmt: skip
    before = lines(page)
    page.hide()
    page.show()
    assert lines(page) == before


def color_of(page: SamplesView, text: str) -> str:
    """The color in which `text` begins."""
    cursor = page.text.document().find(text)
    cursor.setPosition(cursor.selectionStart() + 1)
    return cursor.charFormat().foreground().color().name()


def test_code_and_chinese_text_are_monospaced(make_window: MakeWindow, qtbot: QtBot) -> None:
    page = open_page(make_window, qtbot)
    page.display(
        [Sample(step=1, prompt="def f():\n", text="    return 1\n\tiiii\n    MMMM\n春眠，晓")], can_request=False
    )
    assert horizontal_extent(page.text, "iiii") == horizontal_extent(page.text, "MMMM")
    left, right = horizontal_extent(page.text, "眠")
    assert horizontal_extent(page.text, "，") == (right, 2 * right - left)  # full width
    assert horizontal_extent(page.text, "return")[0] == horizontal_extent(page.text, "f():")[0]  # both are in column 5
