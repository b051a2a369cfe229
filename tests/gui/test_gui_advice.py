"""Advice with fixes, OOM recoveries, and reasons of a pause."""

from __future__ import annotations

import time

import pytest
from PySide6.QtWidgets import QApplication, QLabel
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from app.pages.plots.advice_panel import AdviceRow
from tests.gui.conftest import MakeWindow, click, wait_for_state
from trainer_core import protocol

GIB = 1024**3
CONFIG = {"batch_size": 16, "gradient_accumulation_steps": 4}
HELLO = protocol.Hello(pid=1, run_dir="a", traindeck="1", python="3", torch="2", config=CONFIG)
OOM_RECOVERY = protocol.OomRecovery(
    step=3012, action="halved", during="backward", batch_size=8, gradient_accumulation_steps=8, requested=2 * GIB,
    free=GIB, total=24 * GIB,
)  # fmt: skip
FEW_TOKENS = protocol.Advice(
    code="data.few_tokens",
    params={"tokens": 604_333, "parameters": 4_507_392},
    suggested_settings={"hidden_dim": 192, "n_layers": 3},
)


def show(controller: Controller, *events: protocol.AnyEvent) -> list[AdviceRow]:
    """Handle events of the active run. Returns the displayed rows."""
    for event in events:
        controller.active_run.handle_event(event)
    controller.render()
    QApplication.processEvents()  # update the layout
    return controller.window.plots.advice.rows


def test_advice_expands_and_disappears_when_it_is_resolved(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    panel = controller.window.plots.advice
    assert not panel.isVisible()
    [row] = show(controller, HELLO, FEW_TOKENS)
    assert "604,333 tokens" in row.summary_label.text()
    assert not row.details_label.isVisible()
    click(qtbot, row.details_button)
    assert row.details_label.isVisible()
    assert "Hidden size 192, Layers 3" in row.details_label.text()
    assert controller.window.banners.contents == []
    show(controller, protocol.Advice(code=FEW_TOKENS.code, params=FEW_TOKENS.params, resolved=True))
    assert not panel.isVisible()
    assert [entry.level for entry in controller.active_run.record.log][-2:] == ["advice", "info"]


def test_an_applied_fix_is_used_at_the_next_start(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window("echo")
    click(qtbot, controller.window.run_bar.start)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    [row] = show(controller, FEW_TOKENS)
    assert row.apply_button.text() == "Apply at next start"
    click(qtbot, row.apply_button)
    controller.render()
    [row] = controller.window.plots.advice.rows
    assert (row.apply_button.text(), row.apply_button.isEnabled()) == ("Applied", False)
    assert "at the next start" in row.details_label.text()
    click(qtbot, controller.window.run_bar.stop)
    wait_for_state(qtbot, controller, RunState.STOPPED)
    click(qtbot, controller.window.run_bar.start)
    arguments = controller.active_run.process.arguments
    assert arguments[arguments.index("--hidden-dim") + 1] == "192"
    assert arguments[arguments.index("--n-layers") + 1] == "3"


def test_the_newest_advice_is_first_and_more_than_three_rows_are_collapsed(
    make_window: MakeWindow, qtbot: QtBot
) -> None:
    controller = make_window()
    panel = controller.window.plots.advice
    later = [protocol.Advice(code=f"later.{number}", suggested_settings={"unknown_knob": 1}) for number in range(4)]
    assert [row.code for row in show(controller, HELLO, FEW_TOKENS, *later)] == ["later.3", "later.2", "later.1"]
    assert not panel.rows[0].apply_button.isVisible()  # an unknown setting
    assert panel.more_button.text() == "2 more"
    click(qtbot, panel.more_button)
    assert [row.code for row in panel.rows][-1] == FEW_TOKENS.code
    assert show(controller, FEW_TOKENS)[0].code == FEW_TOKENS.code  # repeated advice is the newest again


@pytest.mark.parametrize(
    ("language", "text", "grown_text"),
    [
        (
            "en",
            "Out of memory at step 3,012 (backward, requested 2.0 GiB, 1.0 GiB free): micro-batch 8, accumulation 8; "
            "nothing was lost",
            "micro-batch 16",
        ),
        (
            "zh",
            "第 3,012 步内存不足（反向，申请 2.0 GiB，可用 1.0 GiB）：微批 8，累积 8；没有丢失任何内容",
            "微批 16",
        ),
    ],
)
def test_an_oom_recovery_is_displayed_on_the_page_and_in_the_log(
    make_window: MakeWindow, language: str, text: str, grown_text: str
) -> None:
    controller = make_window(language=language)
    [row] = show(controller, HELLO, OOM_RECOVERY)
    assert row.summary_label.text() == text
    assert not row.details_button.isVisible()
    grown = protocol.OomRecovery(step=3500, action="grown", during="none", batch_size=16, gradient_accumulation_steps=4)
    [row] = show(controller, grown)
    assert grown_text in row.summary_label.text()
    controller.window.show_page("log")
    lines = controller.window.log.text.toPlainText().splitlines()
    assert [text in line for line in lines].count(True) == 1
    assert grown_text in lines[-1]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("requested", "step 3"),
        ("schedule", "on schedule until"),
        ("other_program", "another program uses the GPU"),
        ("disk_full", "disk full"),
    ],
)
def test_a_paused_run_displays_the_reason_and_can_be_resumed(
    make_window: MakeWindow, qtbot: QtBot, reason: protocol.PauseReason, text: str
) -> None:
    controller = make_window("echo")
    bar = controller.window.run_bar
    click(qtbot, bar.start)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    until = time.time() + 60 if reason == "schedule" else None
    show(controller, protocol.Phase(phase="paused", step=3, reason=reason, until=until))
    assert bar.state_label.text() == "Paused"
    assert bar.status_label.text().startswith(text)
    click(qtbot, bar.resume)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    assert text not in bar.status_label.text() or reason == "requested"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_expanded_advice_is_not_cut_off_in_the_smallest_window(
    make_window: MakeWindow, qtbot: QtBot, language: str
) -> None:
    controller = make_window(language=language)
    controller.window.resize(controller.window.minimumSize())
    rows = show(controller, HELLO, FEW_TOKENS, OOM_RECOVERY)
    for row in rows:
        row.details_button.click()
    qtbot.wait(50)
    for row in rows:
        for label in row.findChildren(QLabel):
            if label.isVisible() and label.wordWrap():
                assert label.height() >= label.heightForWidth(label.width()), label.text()
        if row.apply_button.isVisible():
            assert row.apply_button.width() >= row.apply_button.sizeHint().width()
