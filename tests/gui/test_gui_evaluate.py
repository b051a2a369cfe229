"""Evaluate page: options, progress, scores, and the rows where base and tuned differ."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.evaluations import base_model_folder
from app.pages.evaluate.page import EvaluatePage
from app.services import desktop_shell
from tests.gui.conftest import ROOT, MakeWindow, click, wait_until_loaded
from tests.gui.model_folders import write_model
from tests.gui.runs_page import add_run
from tests.gui.test_gui_chat_real import question_file, train
from trainer_core import protocol
from trainer_core.messages import ExitCode
from trainer_core.protocol import Evaluation, ModelScores, Score


def add_evaluation(run: Path, name: str, gain: Score) -> Path:
    """Write an evaluation of three rows, in which base and tuned differ twice."""
    folder = run / "evaluations"
    folder.mkdir(parents=True, exist_ok=True)
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


@pytest.mark.parametrize("selects", [True, False])
def test_the_displayed_run_is_selected_until_the_user_selects_another(
    make_window: MakeWindow, qtbot: QtBot, home: Path, tmp_path: Path, selects: bool
) -> None:
    chosen, displayed, other = (add_run(home, name, age_s) for name, age_s in (("a", 10), ("b", 20), ("c", 30)))
    checkpoints, moved = displayed / "checkpoints", tmp_path / "checkpoints"
    checkpoints.rename(moved)
    controller = make_window()
    controller.open_run(displayed)
    wait_until_loaded(qtbot, controller)
    page = open_evaluate(qtbot, controller)
    choice = page.options.choice
    assert choice.selected_run == chosen  # the newest
    if selects:
        choice.checkpoint.setCurrentIndex(1)
        choice.checkpoint.activated.emit(1)
    expected = choice.selected_checkpoint if selects else checkpoints / "step-00000060"
    moved.rename(checkpoints)
    controller._refresh_runs()
    qtbot.waitUntil(lambda: choice.run.findText("b") >= 0, timeout=10_000)
    assert choice.selected_checkpoint == expected
    controller.window.show_page("plots")
    controller.window.show_page("evaluate")
    assert choice.selected_checkpoint == expected
    controller.open_run(other)
    wait_until_loaded(qtbot, controller)
    controller.window.show_page("evaluate")
    assert choice.selected_run == other


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


def open_base_model(qtbot: QtBot, controller: Controller, folder: Path, data: Path) -> EvaluatePage:
    """Name a base model and data in the setup form, and select its entry of the page."""
    controller.form.set_values({"base_model": str(folder), "validation_fraction": 0.25, "prompt_column": "prompt"})
    controller.form.set_data([str(data)])
    page = controller.window.evaluate
    controller.window.show_page("evaluate")
    choice = page.options.choice
    qtbot.waitUntil(lambda: choice.run.itemText(0) == f"Next run's base model: {folder.name}", timeout=10_000)
    choice.run.setCurrentIndex(0)
    choice.run.activated.emit(0)
    qtbot.waitUntil(page.start.isEnabled, timeout=10_000)
    return page


def test_the_base_model_of_the_form_is_evaluated_with_the_settings_of_the_form(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, home: Path
) -> None:
    run, folder, data = add_run(home, "a"), write_model(tmp_path / "我的 模型"), question_file(tmp_path)
    controller = make_window()
    page = open_base_model(qtbot, controller, folder, data)
    options = page.options
    assert options.choice.run.itemText(1) == "a"
    for field in (options.choice.checkpoint, options.compare):
        assert (field.isEnabled(), field.toolTip()) == (False, "There is no tuned model yet")
    assert options.data.placeholderText() == "Rows that the run would hold out"
    options.system.setText("简短")
    options.examples.setValue(2)
    arguments = tmp_path / "arguments.json"
    replace_evaluator(page, f"import json; json.dump(sys.argv[1:], open({str(arguments)!r}, 'w'))")
    click(qtbot, page.start)
    qtbot.waitUntil(lambda: not page.job.is_running, timeout=20_000)
    command, settings, *flags = json.loads(arguments.read_text())
    assert (command, Path(settings)) == ("evaluate", base_model_folder(str(folder)) / "config.yaml")
    assert flags[2:-5] == ["--compare", "--examples", "2", "--system", "简短", "--results"]
    values = yaml.safe_load(Path(settings).read_text(encoding="utf-8"))
    assert (values["base_model"], values["data"], values["preset"]) == (str(folder), [str(data)], "quickstart")
    assert (values["validation_fraction"], values["prompt_column"]) == (0.25, "prompt")
    controller.form.set_text("base_model", "")
    assert (options.choice.run.count(), options.choice.selected_run) == (1, run)
    assert options.choice.checkpoint.isEnabled()


def test_evaluations_of_a_base_model_are_listed_while_the_form_names_it(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    first, second, data = write_model(tmp_path / "甲"), write_model(tmp_path / "乙"), question_file(tmp_path)
    add_evaluation(base_model_folder(str(first)), "20260101-000000", Score(value=0.5, low=0.2, high=0.8))
    controller = make_window()
    page = open_base_model(qtbot, controller, first, data)
    assert page.evaluation.count() == 1
    controller.form.set_text("base_model", str(second))
    assert page.options.choice.run.currentText() == "Next run's base model: 乙"
    assert page.evaluation.count() == 0
    controller.form.set_text("base_model", str(first))
    assert page.evaluation.count() == 1
    controller.form.set_text("batch_size", "0")
    assert page.start.toolTip() == controller.form.blocked_reason != ""
    controller.form.set_data([])
    assert page.options.choice.run.count() == 0


def test_a_base_model_is_evaluated_before_any_training(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, home: Path
) -> None:
    from tests.core.test_transformers_models import base_folder  # imports torch

    folder, data = base_folder(tmp_path / "基础 base", "llama"), question_file(tmp_path)
    page = open_base_model(qtbot, make_window(), folder, data)
    page.options.rows.setValue(6)
    page.options.system.setText("简短回答")
    page.options.examples.setValue(1)
    click(qtbot, page.start)
    qtbot.waitUntil(lambda: not page.job.is_running, timeout=180_000)
    assert page.status.text() == "Evaluated", page.job.failure
    view = page.results
    assert [scores.name for scores in view.scores.row_model.rows] == ["base", "system", "examples"]
    qtbot.waitUntil(lambda: len(select_filter(page, "all")) == 6, timeout=10_000)
    held_out = select_filter(page, "all")
    assert not home.joinpath("runs").exists()
    page.options.data.setText(str(data))  # all of its rows are candidates
    page.options.rows.setValue(0)
    page.options.system.clear()
    page.options.examples.setValue(0)
    click(qtbot, page.start)
    qtbot.waitUntil(lambda: not page.job.is_running, timeout=180_000)
    assert page.job.result is not None, page.job.failure
    assert page.job.result.rows == 200
    assert page.evaluation.count() == 2
    assert set(held_out) < set(range(200))


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
