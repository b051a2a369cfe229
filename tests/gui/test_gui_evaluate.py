"""Evaluate page: options, progress, scores, and the rows where base and tuned differ."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.pages.evaluate.page import EvaluatePage
from app.services import desktop_shell
from tests.gui.conftest import ROOT, MakeWindow, click
from tests.gui.runs_page import add_run
from tests.gui.test_gui_chat_real import question_file, train
from trainer_core import protocol
from trainer_core.messages import ExitCode
from trainer_core.protocol import Evaluation, ModelScores, Score


def add_evaluation(run: Path, name: str, gain: Score) -> Path:
    """Write an evaluation of three rows, in which base and tuned differ twice."""
    folder = run / "evaluations"
    folder.mkdir(exist_ok=True)
    answers = (("7", "7"), ("一" * 300, "8"), ("9", "10"))
    lines = []
    for number, (base, tuned) in enumerate(answers):
        reference = str(number + 7)
        models = {
            model: {"loss": 0.5, "tokens": 2, "answer": text, "exact_match": text == reference}
            for model, text in (("base", base), ("tuned", tuned))
        }
        prompt = [{"role": "user", "content": f"{number + 6} 加 1？"}]
        lines.append(json.dumps({"row": number, "prompt": prompt, "reference": reference, "models": models}))
    (folder / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    scores = [
        ModelScores(name="base", exact_match=Score(value=0.667, low=0.1, high=0.9)),
        ModelScores(name="tuned", exact_match=Score(value=0.667, low=0.1, high=0.9), gain=gain),
    ]
    event = Evaluation(t=1.0, task="sft", rows=3, main_score="exact_match", scores=scores)
    (folder / f"{name}.summary.json").write_bytes(protocol.encode(event))
    return folder


def open_evaluate(qtbot: QtBot, controller: Controller) -> EvaluatePage:
    page = controller.window.evaluate
    controller.window.show_page("evaluate")
    qtbot.waitUntil(lambda: page.options.choice.selected_checkpoint is not None, timeout=10_000)
    return page


def select_filter(page: EvaluatePage, name: str) -> list[int]:
    """Numbers of the rows that a filter shows."""
    view = page.results
    view.filter.setCurrentIndex(view.filter.findData(name))
    view.filter.activated.emit(view.filter.currentIndex())
    return [row.number for row in view.table.shown_rows()]


def replace_evaluator(page: EvaluatePage, code: str) -> None:
    """Run `code` instead of the trainer."""
    page.job.process._command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"]


def test_an_earlier_evaluation_shows_its_scores_and_the_rows_that_differ(
    make_window: MakeWindow, qtbot: QtBot, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(home, "调优", base_model="甲")
    add_evaluation(run, "20260101-000000", Score(value=0.5, low=0.2, high=0.8))
    folder = add_evaluation(run, "20260102-000000", Score(value=0.0, low=-0.2, high=0.2))
    page = open_evaluate(qtbot, make_window())
    view = page.results
    qtbot.waitUntil(lambda: len(view.table.shown_rows()) == 2, timeout=10_000)
    assert view.verdict.text() == "Tuned: no clear difference from base, exact match +0.0% (-20.0% … +20.0%)"
    assert view.scores.row_model.index(1, 3).data() == "66.7% (10.0%–90.0%)"
    assert view.count.text() == "2 of 3 rows"
    headers = [view.rows_model.headerData(n, Qt.Orientation.Horizontal, 0) for n in range(4)]
    assert headers == ["Prompt", "Reference", "Base", "Tuned"]
    cells = [view.table.model().index(1, column).data() for column in range(4)]
    assert cells == ["8 加 1？", "9", "✓ 9", "✗ 10"]
    assert select_filter(page, "wrong") == [2]
    assert select_filter(page, "worse") == [2]
    assert select_filter(page, "all") == [0, 1, 2]
    page.evaluation.setCurrentIndex(1)
    page.evaluation.activated.emit(1)
    assert view.verdict.text().startswith("Tuned: better than base")
    opened: list[Path] = []
    monkeypatch.setattr(desktop_shell, "open_folder", opened.append)
    click(qtbot, page.open_folder)
    assert opened == [folder]


def test_selecting_a_row_with_the_keyboard_shows_its_whole_texts(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    add_evaluation(add_run(home, "a", base_model="b"), "1", Score(value=0.0, low=0.0, high=0.0))
    page = open_evaluate(qtbot, make_window())
    view = page.results
    qtbot.waitUntil(lambda: len(view.table.shown_rows()) == 2, timeout=10_000)
    assert view.no_row.isVisible()
    view.table.setFocus()
    qtbot.keyClick(view.table, Qt.Key.Key_Down)
    text = view.text.toPlainText()
    assert "一" * 300 in text
    assert text.startswith("Prompt\n7 加 1？\nReference\n8\nBase · wrong\n")
    assert "Tuned · right\n8" in text


def test_controls_that_cannot_be_used_say_why(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    controller = make_window()
    page = controller.window.evaluate
    controller.window.show_page("evaluate")
    assert not page.start.isEnabled()
    assert page.start.toolTip() == "No run has a checkpoint yet"
    run = add_run(home, "a")
    controller._refresh_runs()
    qtbot.waitUntil(page.start.isEnabled, timeout=10_000)
    assert not page.options.compare.isEnabled()
    assert page.options.compare.toolTip() == "The run has no base model"
    assert page.options.system.toolTip() == "Only when comparing with the base model"
    assert not page.open_folder.isEnabled()
    assert not page.options.options.compare
    page.options.data.setText("missing.jsonl")
    assert page.start.toolTip() == "No such file: missing.jsonl"
    page.options.data.clear()
    page.options.judge.setCurrentIndex(1)
    assert page.start.toolTip() == "Enter the rule of the judge"
    qtbot.keyClicks(page.options.rule, "^[0-9]+$")
    assert page.start.isEnabled()
    assert page.options.options.judge == "regex:^[0-9]+$"
    assert page.options.choice.selected_run == run


def test_a_stopped_evaluation_keeps_no_results(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    add_run(home, "a")
    page = open_evaluate(qtbot, make_window())
    replace_evaluator(page, f"sys.stdin.readline(); sys.exit({ExitCode.STOPPED:d})")
    click(qtbot, page.start)
    assert page.start.toolTip() == "An evaluation is running"
    click(qtbot, page.stop)
    assert page.status.text() == "stopping"
    qtbot.waitUntil(lambda: not page.job.is_running, timeout=20_000)
    assert page.status.text() == "Stopped. No results were kept."
    assert page.window().focusWidget() is page.start


def test_a_failed_evaluation_shows_the_reason(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    add_run(home, "a")
    page = open_evaluate(qtbot, make_window())
    replace_evaluator(page, "sys.exit(9)")
    click(qtbot, page.start)
    qtbot.waitUntil(lambda: not page.job.is_running, timeout=20_000)
    assert page.status.text().startswith("The evaluation exited unexpectedly (code 9).")


def test_a_tuned_model_is_evaluated_beside_its_base_model(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, home: Path
) -> None:
    home.mkdir()
    train(home, question_file(tmp_path), "base")
    train(home, question_file(tmp_path), "调优 tuned", "--base-model", str(home / "runs" / "base"))
    page = open_evaluate(qtbot, make_window())
    page.options.choice.select(home / "runs" / "调优 tuned", None)
    page.options.data.setText(str(question_file(tmp_path)))
    page.options.rows.setValue(6)
    page.options.system.setText("简短回答")
    click(qtbot, page.start)
    qtbot.waitUntil(lambda: not page.job.is_running, timeout=180_000)
    assert page.status.text() == "Evaluated", page.job.failure
    view = page.results
    assert [scores.name for scores in view.scores.row_model.rows] == ["base", "system", "tuned"]
    assert "base, base + system prompt, tuned · 6 rows" in page.evaluation.currentText()
    qtbot.waitUntil(lambda: view.count.text().endswith("of 6 rows"), timeout=10_000)
    assert len(select_filter(page, "all")) == 6
    assert [len(row.answers) for row in view.table.shown_rows()] == [3] * 6
    assert list((home / "runs" / "调优 tuned" / "evaluations").glob("*.jsonl"))


def test_texts_are_listed_with_their_losses_and_without_filters(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    folder = add_run(home, "文本") / "evaluations"
    folder.mkdir()
    row = {"row": 4, "text": "从前\n有座山", "models": {"model": {"loss": 2.5, "tokens": 6}}}
    (folder / "1.jsonl").write_text(json.dumps(row), encoding="utf-8")
    scores = [ModelScores(name="model", loss=Score(value=2.5, low=2.0, high=3.0))]
    event = Evaluation(t=1.0, task="pretrain", rows=1, main_score="loss", scores=scores)
    (folder / "1.summary.json").write_bytes(protocol.encode(event))
    view = open_evaluate(qtbot, make_window()).results
    qtbot.waitUntil(lambda: len(view.table.shown_rows()) == 1, timeout=10_000)
    assert [view.filter.itemData(n) for n in range(view.filter.count())] == ["all"]
    shown = [n for n in range(4) if not view.table.isColumnHidden(n)]
    assert [view.rows_model.index(0, n).data() for n in shown] == ["从前 有座山", "2.5000"]
    assert view.verdict.isHidden()
    view.table.selectRow(0)
    assert view.text.toPlainText() == "Text\n从前\n有座山\nModel\n2.5000\n"
