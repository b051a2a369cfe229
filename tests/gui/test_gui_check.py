"""Check before the start: results, offers, cancel, errors."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QLabel, QPushButton
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from tests.gui.conftest import MakeWindow, click, stop_refresh_timer, wait_for_state


def run_check(controller: Controller, qtbot: QtBot) -> None:
    click(qtbot, controller.window.run_bar.check)
    qtbot.waitUntil(lambda: controller.check_job.running is None, timeout=30_000)


def test_a_check_shows_the_verdict_and_its_metrics(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(check="check")
    card = controller.window.check_card
    assert not card.isVisible()
    controller.form.set_text("batch_size", "8")
    run_check(controller, qtbot)
    assert (card.verdict.text(), card.facts.text()) == (
        "Fits",
        "NVIDIA GeForce RTX 4090  ·  batch size 8 × 4  ·  measured in 58 s",
    )
    assert {name: value.text() for name, value in card.values.items()} == {
        "memory": "13.0 GiB of 23.0 GiB free",
        "speed": "88,400",
        "time": "4:06:40",
        "disk": "8.0 GiB of 300.0 GiB free",
    }
    assert card.bar.value() == round(1000 * 13 / 23)
    assert card.offers == []
    assert not card.hint.isVisible()


def test_the_card_has_its_new_height_in_the_first_frame(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(check="check")
    card = controller.window.check_card
    controller.form.set_text("batch_size", "8")
    click(qtbot, controller.window.run_bar.check)
    qtbot.waitUntil(card.cancel.isVisible)
    qtbot.waitUntil(lambda: controller.check_job.running is None, timeout=30_000)
    stop_refresh_timer(controller)
    qtbot.waitUntil(lambda: card.height() == card.sizeHint().height())
    job, height = controller.check_job, card.height()
    job.running = job.result
    card.refresh()
    qtbot.waitUntil(lambda: card.height() < height)
    job.running = None
    card.refresh()
    assert card.height() == height  # before the next event


def test_a_check_has_the_same_arguments_as_a_start(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("echo", check="slow_check")
    controller.form.set_text("learning_rate", "1e-3")
    controller.form.add_data(["D:/数据 集/a & b.txt"])
    click(qtbot, controller.window.run_bar.check)
    checked = controller.check_job.process.arguments
    click(qtbot, controller.window.run_bar.start)
    started = controller.active_run.process.arguments
    assert checked[checked.index("check") + 1 :] == [
        argument
        for argument in started[started.index("train") + 1 :]
        if argument != "--run-dir" and "runs" not in argument
    ]


def test_apply_sets_an_offer_that_fits(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(check="check")
    card, form = controller.window.check_card, controller.form
    form.set_text("batch_size", "64")
    run_check(controller, qtbot)
    assert card.verdict.text() == "Does not fit"
    assert card.values["memory"].text() == "more than 23.0 GiB"
    assert card.values["time"].text() == "–"
    [apply] = card.offers
    click(qtbot, apply)
    assert (form.value("batch_size"), form.value("gradient_accumulation_steps")) == (8, 8)
    assert form.is_changed("batch_size")
    [applied] = card.offers
    assert isinstance(applied, QPushButton)
    assert (applied.text(), applied.isEnabled()) == ("Applied", False)
    assert card.hint.isVisible()  # the figures belong to other settings
    run_check(controller, qtbot)
    assert card.verdict.text() == "Fits"
    assert not card.hint.isVisible()


def test_a_relevant_change_makes_a_check_outdated_until_it_is_reverted(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(check="check")
    card, form = controller.window.check_card, controller.form
    run_check(controller, qtbot)
    assert card.verdict.text() == "Tight"
    form.set_text("learning_rate", "1e-3")
    assert not card.hint.isVisible()
    form.set_text("hidden_dim", "512")
    assert card.hint.isVisible()
    form.reset("hidden_dim")
    assert not card.hint.isVisible()


def test_a_check_can_be_cancelled(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(check="slow_check")
    card = controller.window.check_card
    click(qtbot, controller.window.run_bar.check)
    qtbot.waitUntil(lambda: "2 / 6" in card.facts.text())
    assert not controller.window.run_bar.check.isEnabled()
    click(qtbot, card.cancel)
    qtbot.waitUntil(lambda: not card.isVisible(), timeout=20_000)
    qtbot.waitUntil(controller.window.run_bar.check.isEnabled)


def test_a_start_cancels_the_check(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("echo", check="slow_check")
    click(qtbot, controller.window.run_bar.check)
    qtbot.waitUntil(lambda: "2 / 6" in controller.window.check_card.facts.text())
    click(qtbot, controller.window.run_bar.start)
    assert not controller.window.check_card.isVisible()
    qtbot.waitUntil(lambda: controller.check_job.running is None, timeout=20_000)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    assert not controller.window.run_bar.check.isEnabled()


def test_a_failed_check_shows_its_error(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window(check="error")
    card = controller.window.check_card
    run_check(controller, qtbot)
    assert "does not exist" in card.failure.text()
    assert not card.bar.isVisible()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_text_of_a_check_is_clipped(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    controller = make_window(language=language, check="check")
    window, card = controller.window, controller.window.check_card
    controller.form.set_text("batch_size", "64")
    run_check(controller, qtbot)
    for size in ((895, 560), (1100, 700), (1280, 800)):
        window.resize(*size)
        qtbot.wait(50)
        assert (window.width(), window.height()) == size
        for value in (*card.values.values(), *card.titles.values(), card.verdict, *card.offers):
            assert value.width() >= value.sizeHint().width(), (size, value.toolTip())
        for label in card.findChildren(QLabel):
            if label.isVisible() and label.wordWrap():
                assert label.height() >= label.heightForWidth(label.width()), (size, label.text())
