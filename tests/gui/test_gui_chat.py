"""Chat page with a fake trainer; test_gui_chat_real.py has real models."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QTextCursor, QTextDocument
from PySide6.QtWidgets import QAbstractButton, QFileDialog, QLabel, QWidget
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.conversation import Turn
from app.core.run_state import RunState
from app.pages.chat.corrections import CorrectionDialog
from app.pages.chat.history_dialog import HistoryDialog
from app.pages.chat.page import ChatPage
from app.pages.chat.transcript import Transcript
from app.services.generation_session import GenerationSession
from app.services.trainer_process import TrainerProcess
from tests.gui.conftest import FAKE_TRAINER, LEFT, MakeWindow, click, horizontal_extent, wait_for_state
from trainer_core import protocol
from trainer_core.runs import checkpoint_dir
from trainer_core.system.hardware import GpuInfo, probe

FIND_BACKWARD = QTextDocument.FindFlag.FindBackward
LONG = 90_000  # tokens: longer than any test
WriteModels = Callable[..., Path]


@pytest.fixture
def write_models(home: Path) -> WriteModels:
    """Creates runs with fake checkpoints of steps 1 and 2; returns the folder of runs.

    A run whose name begins with `chat` answers; one whose name ends with `tuned` has a base model.
    """

    def make(*names: str) -> Path:
        for name in names:
            for step in (1, 2):
                folder = checkpoint(home / "runs", name, step)
                folder.mkdir(parents=True)
                (folder / "weights").write_bytes(b"w")
                task = "sft" if name.startswith("chat") else "pretrain"
                (folder / "tokenizer_config.json").write_text(json.dumps({"traindeck": {"task": task}}))
                checkpoint_dir.write_manifest(folder, step, "regular", 3.5 - step)
            base = "base_model: Qwen/Qwen3-0.6B" if name.endswith("tuned") else ""
            (home / "runs" / name / "config.yaml").write_text(f"preset: cpu\n{base}", encoding="utf-8")
        return home / "runs"

    return make


def checkpoint(runs: Path, name: str, step: int) -> Path:
    return runs / name / "checkpoints" / checkpoint_dir.folder_name(step)


def process_factory(program: Path, *arguments: str) -> Callable[[], TrainerProcess]:
    return lambda: TrainerProcess(command=[sys.executable, "-u", "-X", "utf8", str(program), *arguments])


create_generator = process_factory(FAKE_TRAINER.with_name("fake_generator.py"))


def open_page(
    make_window: MakeWindow,
    qtbot: QtBot,
    name: str = "text",
    create_process: Callable[[], TrainerProcess] = create_generator,
    mode: str = "ok",
) -> tuple[Controller, ChatPage]:
    """Open the page with the newest checkpoint of a run selected."""
    controller = make_window(mode)
    for session in controller.window.chat.models.all_sessions:
        session.create_process = create_process
    controller.window.show_page("chat")
    page = controller.window.chat
    column = page.columns[0]
    qtbot.waitUntil(lambda: column.run.findText(name) >= 0, timeout=10_000)
    column.run.setCurrentIndex(column.run.findText(name))
    column.run.activated.emit(column.run.currentIndex())
    page.row.fields["max_tokens"].setValue(3)
    return controller, page


def generate(controller: Controller, qtbot: QtBot, prompt: str) -> list[GenerationSession]:
    """Generate a text for a prompt. Returns the visible sessions."""
    page = controller.window.chat
    page.prompt.setPlainText(prompt)
    click(qtbot, page.write)
    sessions = controller.window.chat.models.sessions
    qtbot.waitUntil(lambda: not any(session.is_busy for session in sessions), timeout=60_000)
    return sessions


def newest_text(session: GenerationSession) -> str:
    return session.turns[-1].text


def expected_text(seed: int, step: int, words: int = 3) -> str:
    """Text that the fake generator returns for a checkpoint."""
    return "".join(f"seed{seed}step{step}word{number + 1} " for number in range(words))


def pid(session: GenerationSession) -> int:
    assert session.process is not None
    assert session.process.pid is not None
    return session.process.pid


def test_a_text_continues_its_prompt_and_can_be_copied(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("text")
    controller, page = open_page(make_window, qtbot)
    page.row.fields["seed"].setValue(5)
    (session,) = generate(controller, qtbot, "Line 第")
    assert newest_text(session) == expected_text(5, 2)
    assert page.columns[0].transcript.toPlainText().splitlines() == [
        "Step 2, seed 5",
        "Line 第" + expected_text(5, 2),
        "… max tokens reached",
    ]
    assert page.columns[0].status.text() == "3 tokens, 3 tokens/s · CPU (1 thread)"
    assert page.prompt.toPlainText() == "Line 第"
    click(qtbot, page.columns[0].copy)
    assert QGuiApplication.clipboard().text() == "Line 第" + expected_text(5, 2)


@pytest.mark.parametrize("name", ["text", "chat"])
def test_code_keeps_its_indentation(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels, name: str
) -> None:
    write_models(name)
    controller, page = open_page(make_window, qtbot, name)
    code = "def f():\n    iiii\n\tMMMM"
    generate(controller, qtbot, code)
    page.prompt.setPlainText(code)  # cleared after a question
    for edit in (page.columns[0].transcript, page.prompt):
        assert horizontal_extent(edit, "iiii") == horizontal_extent(edit, "MMMM")
        assert horizontal_extent(edit, "iiii")[0] == horizontal_extent(edit, "f():")[0]


def test_regenerate_replaces_the_text_with_another_seed_in_the_same_process(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("text")
    controller, page = open_page(make_window, qtbot)
    (session,) = generate(controller, qtbot, "Line")
    first, process = newest_text(session), pid(session)
    (session,) = generate(controller, qtbot, "Line")
    assert newest_text(session) == first
    click(qtbot, page.again)
    qtbot.waitUntil(lambda: not session.is_busy, timeout=60_000)
    assert len(session.turns) == 2
    assert page.row.fields["seed"].text() == str(session.turns[-1].sampling["seed"]) != "0"
    assert newest_text(session) != first
    assert pid(session) == process


def test_two_checkpoints_generate_side_by_side(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("text")
    controller, page = open_page(make_window, qtbot)
    click(qtbot, page.compare)
    assert page.columns[1].isVisible()
    page.row.fields["seed"].setValue(8)
    first, second = generate(controller, qtbot, "Line 1")
    assert (newest_text(first), newest_text(second)) == (expected_text(8, 2), expected_text(8, 1))
    second_pid = pid(second)
    click(qtbot, page.compare)
    assert not page.columns[1].isVisible()
    qtbot.waitUntil(lambda: not psutil.pid_exists(second_pid), timeout=20_000)


def test_ctrl_enter_generates_and_esc_stops_and_keeps_the_text(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("text")
    controller, page = open_page(make_window, qtbot)
    page.row.fields["max_tokens"].setValue(LONG)
    controller.window.activateWindow()
    page.prompt.setFocus()
    qtbot.keyClicks(page.prompt, "Line")
    qtbot.keyClick(page.prompt, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    (session,) = controller.window.chat.models.sessions
    qtbot.waitUntil(lambda: session.is_busy and len(newest_text(session)) > 20, timeout=60_000)
    assert page.stop.isVisible()
    assert not page.write.isVisible()
    process = pid(session)
    qtbot.keyClick(page.prompt, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: not session.is_busy, timeout=20_000)
    assert session.turns[-1].status == "interrupted"
    assert page.columns[0].transcript.toPlainText().endswith("\nstopped")
    assert page.write.isVisible()
    assert controller.active_run.machine.state is RunState.IDLE  # on other pages, Ctrl+Enter starts a run
    page.row.fields["max_tokens"].setValue(3)
    generate(controller, qtbot, "Line")
    assert pid(session) == process


def test_a_second_stop_ends_an_unresponsive_process(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("text")
    controller, page = open_page(make_window, qtbot)
    page.row.fields["max_tokens"].setValue(LONG)
    page.prompt.setPlainText("deaf")
    click(qtbot, page.write)
    (session,) = controller.window.chat.models.sessions
    qtbot.waitUntil(lambda: session.is_busy and len(newest_text(session)) > 20, timeout=60_000)
    process = pid(session)
    click(qtbot, page.stop)
    length = len(newest_text(session))
    qtbot.waitUntil(lambda: len(newest_text(session)) > length, timeout=20_000)
    click(qtbot, page.stop)
    assert not session.is_busy
    assert session.turns[-1].status == "interrupted"
    assert len(newest_text(session)) > 20
    qtbot.waitUntil(lambda: not psutil.pid_exists(process), timeout=20_000)


def test_shortcuts_regenerate_and_start_a_new_conversation(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("text")
    controller, page = open_page(make_window, qtbot)
    (session,) = generate(controller, qtbot, "Line")
    controller.window.activateWindow()
    page.prompt.setFocus()
    qtbot.keyClick(page.prompt, Qt.Key.Key_R, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: not session.is_busy and session.turns[-1].sampling["seed"] > 0, timeout=20_000)
    qtbot.keyClick(page.prompt, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert session.turns == []
    assert page.prompt.toPlainText() == ""
    listed = [action.text() for title, action in controller.window.table_shortcuts() if title == "Chat"]
    assert listed == ["Generate", "Stop", "Regenerate", "Edit prompt", "Correct", "Compare", "New", "History…"]


def test_a_chat_model_gets_the_previous_turns(make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels) -> None:
    write_models("chat")
    controller, page = open_page(make_window, qtbot, "chat")
    (session,) = generate(controller, qtbot, "1 加 1？")
    assert page.prompt.toPlainText() == ""  # the next question
    generate(controller, qtbot, "和 2？")
    first, second = session.turns
    assert second.chat
    assert second.prompt_tokens == len("1 加 1？" + first.text + "和 2？")  # includes the previous turn
    transcript = page.columns[0].transcript.toPlainText()
    assert transcript.index("1 加 1？") < transcript.index("和 2？")
    click(qtbot, page.new)
    assert page.columns[0].transcript.placeholder.isVisible()
    generate(controller, qtbot, "1 加 1？")
    assert session.turns[-1].prompt_tokens == first.prompt_tokens
    click(qtbot, page.columns[0].copy)
    assert QGuiApplication.clipboard().text() == newest_text(session)  # the answer alone


def test_the_next_text_is_generated_with_the_newest_checkpoint(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    runs = write_models("text")
    newest, moved = checkpoint(runs, "text", 2), runs.parent / "moved"
    newest.rename(moved)
    controller, page = open_page(make_window, qtbot)
    (session,) = generate(controller, qtbot, "Line")
    assert session.turns[-1].step == 1
    moved.rename(newest)
    controller.window.chat.models.refresh_checkpoints()
    assert page.columns[0].checkpoint.currentText().startswith("Newest: Step 2")
    generate(controller, qtbot, "Line")
    assert session.turns[-1].step == 2


def test_a_deleted_checkpoint_is_usable_while_it_is_loaded(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    runs = write_models("text")
    older = checkpoint(runs, "text", 1)
    controller, page = open_page(make_window, qtbot)
    controller.window.chat.select_model(runs / "text", older)
    (session,) = generate(controller, qtbot, "Line")
    before = newest_text(session)
    shutil.rmtree(older)
    controller.window.chat.models.refresh_checkpoints()
    generate(controller, qtbot, "Line")
    assert newest_text(session) == before
    assert page.columns[0].checkpoint.currentText() == older.name
    column = page.columns[0]
    column.checkpoint.setCurrentIndex(0)
    column.checkpoint.activated.emit(0)
    generate(controller, qtbot, "Line")
    assert session.turns[-1].step == 2


def test_a_model_that_cannot_be_loaded_shows_its_error(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    runs = write_models("text")
    controller, page = open_page(make_window, qtbot, create_process=process_factory(FAKE_TRAINER, "error"))
    (session,) = generate(controller, qtbot, "Line")
    assert "does not exist" in page.columns[0].status.text()
    assert page.columns[0].status.property("level") == "bad"
    assert session.turns[-1].status == "failed"
    session.create_process = create_generator
    controller.window.chat.select_model(runs / "text", checkpoint(runs, "text", 1))
    assert page.columns[0].status.text() == ""
    generate(controller, qtbot, "Line")
    assert newest_text(session) == expected_text(0, 1)


def test_a_rejected_prompt_shows_its_error_and_is_not_part_of_the_conversation(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("chat")
    controller, page = open_page(make_window, qtbot, "chat")
    (session,) = generate(controller, qtbot, "refuse this")
    assert "chat template rejects a conversation" in page.columns[0].transcript.toPlainText()
    generate(controller, qtbot, "and this?")
    assert newest_text(session) == expected_text(0, 2)
    assert session.turns[-1].prompt_tokens == len("and this?")


def test_the_mode_follows_the_model_and_can_be_chosen(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("chat", "text")
    controller, page = open_page(make_window, qtbot)
    assert page.modes["continue"].isChecked()
    assert not page.system.isVisible()
    column = page.columns[0]
    column.run.setCurrentIndex(column.run.findText("chat"))
    column.run.activated.emit(column.run.currentIndex())
    assert page.modes["chat"].isChecked()
    page.system.setPlainText("Be brief.")
    (session,) = generate(controller, qtbot, "1 加 1？")
    assert session.turns[-1].prompt_tokens == len("Be brief." + "1 加 1？")
    click(qtbot, page.modes["continue"])
    generate(controller, qtbot, "Line")
    assert session.turns[-1].prompt_tokens == len("Line")
    assert column.transcript.toPlainText().endswith(f"Line{newest_text(session)}\n… max tokens reached")
    click(qtbot, page.modes["chat"])
    generate(controller, qtbot, "2？")
    assert session.turns[-1].prompt_tokens == len("Be brief." + "1 加 1？" + session.turns[0].text + "2？")


def test_an_edited_prompt_replaces_its_turn_and_those_after_it(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("chat")
    controller, page = open_page(make_window, qtbot, "chat")
    for prompt in ("first", "second", "third"):
        (session,) = generate(controller, qtbot, prompt)
    transcript = page.columns[0].transcript
    assert transcript.selected is session.turns[2]
    click_text(qtbot, transcript, "second")
    click(qtbot, page.columns[0].edit)
    assert page.prompt.toPlainText() == "second"
    click(qtbot, page.edit_bar.buttons["cancelEdit"])
    page.prompt.setFocus()
    qtbot.keyClick(page.prompt, Qt.Key.Key_F2)
    assert page.edit_bar.isVisible()
    generate(controller, qtbot, "changed")
    assert [turn.prompt for turn in session.turns] == ["first", "changed"]
    assert not page.edit_bar.isVisible()
    generate(controller, qtbot, "fourth")
    assert len(session.turns) == 3


def click_text(qtbot: QtBot, transcript: Transcript, text: str) -> None:
    """Click at the last occurrence of a text."""
    cursor = transcript.document().find(text, transcript.document().characterCount(), FIND_BACKWARD)
    transcript.setTextCursor(cursor)
    transcript.ensureCursorVisible()
    qtbot.mouseClick(transcript.viewport(), LEFT, pos=transcript.cursorRect().center())


def test_one_click_compares_a_tuned_model_with_its_base(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("chat tuned")
    controller, page = open_page(make_window, qtbot, "chat tuned")
    click(qtbot, page.compare)
    assert page.columns[1].checkpoint.currentText() == "Base model: Qwen/Qwen3-0.6B"
    tuned, base = generate(controller, qtbot, "1 加 1？")
    assert (newest_text(tuned), newest_text(base)) == (expected_text(0, 2), expected_text(0, 0))
    for column, word in zip(page.columns, ("seed0step2word1", "seed0step0word1"), strict=True):
        assert "differs from the other column" in column.transcript.toPlainText()
        marks = [mark.cursor.selectedText() for mark in column.transcript.extraSelections()]
        assert (len(marks), marks[0]) == (3, word)
    assert page.columns[1].transcript.toPlainText().startswith("Qwen/Qwen3-0.6B, seed 0")
    page.row.fields["temperature"].setValue(0)
    generate(controller, qtbot, "2？")
    assert all("same text in both columns" in column.transcript.toPlainText() for column in page.columns)
    assert all(len(column.transcript.extraSelections()) == 3 for column in page.columns)


def test_a_model_folder_is_chosen_in_a_dialog(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_models("text")
    folder = tmp_path / "模型" / "step-7"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    controller, page = open_page(make_window, qtbot)
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: str(folder))
    column = page.columns[0]
    column.run.setCurrentIndex(column.run.count() - 1)
    column.run.activated.emit(column.run.currentIndex())
    assert (column.run.currentText(), column.checkpoint.currentText()) == ("step-7", "Model folder")
    (session,) = generate(controller, qtbot, "Line")
    assert newest_text(session) == expected_text(0, 7)
    assert column.transcript.toPlainText().startswith("step-7, seed 0")


def test_cancelling_the_choice_of_a_folder_keeps_the_checkpoint(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = checkpoint(write_models("text"), "text", 1)
    _, page = open_page(make_window, qtbot)
    column, session = page.columns[0], page.models.all_sessions[0]
    column.checkpoint.setCurrentIndex(column.checkpoint.count() - 1)
    column.checkpoint.activated.emit(column.checkpoint.currentIndex())
    assert session.checkpoint == older
    chosen = column.checkpoint.currentText()
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: "")
    column.run.setCurrentIndex(column.run.count() - 1)
    column.run.activated.emit(column.run.currentIndex())
    assert session.checkpoint == older
    assert (column.run.currentText(), column.checkpoint.currentText()) == ("text", chosen)


def test_a_checkpoint_of_the_run_in_training_is_saved_and_used(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_models("text").parent)  # the fake trainer reports a relative folder
    controller, page = open_page(make_window, qtbot, mode="echo")
    assert not page.columns[0].save.isVisible()
    click(qtbot, controller.window.run_bar.start)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    run = Path(controller.active_run.machine.run_dir)
    page.models.all_sessions[0].select(run)
    with qtbot.waitSignal(
        controller.active_run.event_received,
        check_params_cb=lambda event: isinstance(event, protocol.Ack) and event.command == "save",
        timeout=20_000,
    ):
        click(qtbot, page.columns[0].save)
    newest = checkpoint(run.parent, run.name, 9)
    newest.mkdir(parents=True)
    (newest / "weights").write_bytes(b"w")
    checkpoint_dir.write_manifest(newest, 9, "regular", 1.0)
    controller.active_run.handle_event(
        protocol.Checkpoint(step=9, path=newest.name, bytes=1, seconds=0.1, kind="regular")
    )
    (session,) = generate(controller, qtbot, "Line")
    assert session.turns[-1].step == 9
    assert controller.active_run.machine.state is RunState.TRAINING


def test_a_corrected_answer_becomes_data_of_the_next_run(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("chat")
    controller, page = open_page(make_window, qtbot, "chat")
    page.system.setPlainText("Be brief.")
    (session,) = generate(controller, qtbot, "1 加 1？")
    generated, bar = newest_text(session), page.corrections
    assert not bar.isVisible()
    correct_newest(qtbot, controller, "Two.")
    row = json.loads(bar.path.read_text(encoding="utf-8"))
    assert [message["content"] for message in row["messages"]] == ["Be brief.", "1 加 1？", "Two."]
    assert row["rejected"][-1] == {"role": "assistant", "content": generated}
    assert bar.text.text() == f"Corrected answers: 1 in {bar.path}"
    generate(controller, qtbot, "2？")
    assert session.turns[-1].prompt_tokens == len("Be brief." + "1 加 1？" + "Two." + "2？")
    click(qtbot, bar.buttons["addCorrections"])
    assert controller.form.data == [str(bar.path)]
    assert not bar.buttons["addCorrections"].isEnabled()
    correct_newest(qtbot, controller, "Three.")
    correct_newest(qtbot, controller, "Four.")
    shown = page.columns[0].transcript.toPlainText()
    assert "Four." in shown
    assert "Three." not in shown
    click(qtbot, bar.buttons["undoCorrection"])
    assert session.turns[-1].text == expected_text(0, 2)
    assert len(bar.path.read_text(encoding="utf-8").splitlines()) == 1
    click(qtbot, bar.buttons["undoCorrection"])
    assert not bar.isVisible()
    assert controller.form.data == []  # an empty file cannot be trained on


def test_a_later_correction_replaces_the_row_of_the_same_answer(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("chat")
    controller, page = open_page(make_window, qtbot, "chat")
    page.system.setPlainText("Be brief.")
    (session,) = generate(controller, qtbot, "1？")
    transcript, path = page.columns[0].transcript, page.corrections.path
    page.system.setPlainText("Be long.")  # the model did not see it
    correct_newest(qtbot, controller, "wrong")
    generate(controller, qtbot, "2？")
    correct_newest(qtbot, controller, "II")
    with path.open("a", encoding="utf-8") as file:
        file.write('{"messages": "of another program"}\n')
    transcript.moveCursor(QTextCursor.MoveOperation.Start)
    correct_newest(qtbot, controller, "I")
    foreign, *rows = sorted(map(json.loads, path.read_text(encoding="utf-8").splitlines()), key=len)
    assert foreign == {"messages": "of another program"}
    assert [[message["content"] for message in row["messages"]] for row in rows] == [
        ["Be long.", "1？", "wrong", "2？", "II"],
        ["Be brief.", "1？", "I"],
    ]
    assert rows[1]["rejected"][0]["content"] == "Be brief."
    undo = page.corrections.buttons["undoCorrection"]
    for corrected in (1, 0):
        click(qtbot, undo)
        assert transcript.toPlainText().count("corrected") == corrected
    assert [turn.text for turn in session.turns] == [expected_text(0, 2)] * 2
    assert not undo.isEnabled()
    assert json.loads(path.read_text(encoding="utf-8")) == foreign


def test_a_correction_of_a_reopened_conversation_replaces_its_row(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("chat")
    controller, page = open_page(make_window, qtbot, "chat")
    generate(controller, qtbot, "1？")
    correct_newest(qtbot, controller, "one")
    click(qtbot, page.new)
    click(qtbot, page.history)
    dialog = controller.window.findChild(HistoryDialog)
    assert dialog is not None
    dialog.list.setCurrentRow(0)
    click(qtbot, dialog.open_button)
    correct_newest(qtbot, controller, "I")
    [row] = page.corrections.path.read_text(encoding="utf-8").splitlines()
    assert json.loads(row)["messages"][-1]["content"] == "I"


@pytest.mark.parametrize("answer", ["1\u00a0km", "a\u2028b", "a\r\nb"])
def test_an_answer_can_be_saved_only_if_it_was_edited(qtbot: QtBot, answer: str) -> None:
    parent = QWidget()
    qtbot.addWidget(parent)
    dialog = CorrectionDialog(Turn("?", {}, text=answer, status="end"), parent)
    assert not dialog.save.isEnabled()
    dialog.answer.moveCursor(QTextCursor.MoveOperation.End)
    qtbot.keyClicks(dialog.answer, ".")
    with qtbot.waitSignal(dialog.saved) as saved:
        dialog.save.click()
    assert saved.args == [f"{answer}.".replace("\r\n", "\n").replace("\u2028", "\n")]


def test_undoing_a_correction_of_an_earlier_conversation_changes_no_conversation(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("chat")
    controller, page = open_page(make_window, qtbot, "chat")
    generate(controller, qtbot, "1 加 1？")
    correct_newest(qtbot, controller, "Two.")
    [stored] = stored_conversations()
    before = stored.read_bytes()
    click(qtbot, page.new)
    click(qtbot, page.corrections.buttons["undoCorrection"])
    assert page.corrections.path.read_text(encoding="utf-8") == ""
    assert stored_conversations() == [stored]
    assert stored.read_bytes() == before
    generate(controller, qtbot, "2？")
    assert len(stored_conversations()) == 2


def stored_conversations() -> list[Path]:
    return list((Path(os.environ["TRAINDECK_CONFIG_DIR"]) / "conversations").iterdir())


def correct_newest(qtbot: QtBot, controller: Controller, answer: str) -> None:
    """Correct the newest answer in the dialog."""
    click(qtbot, controller.window.chat.columns[0].correct)
    dialog = controller.window.findChild(CorrectionDialog)
    assert dialog is not None
    assert dialog.reason.text() == "Change the answer to save it"
    dialog.answer.selectAll()
    qtbot.keyClicks(dialog.answer, answer)
    click(qtbot, dialog.save)
    qtbot.waitUntil(lambda: controller.window.findChild(CorrectionDialog) is None)


def test_conversations_are_kept_reopened_and_deleted(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("chat tuned", "text")
    controller, page = open_page(make_window, qtbot, "chat tuned")
    page.system.setPlainText("Be brief.")
    click(qtbot, page.compare)
    generate(controller, qtbot, "1 加 1？")
    controller.window.close()
    controller, page = open_page(make_window, qtbot)
    (session,) = generate(controller, qtbot, "Line")
    click(qtbot, page.history)
    dialog = controller.window.findChild(HistoryDialog)
    assert dialog is not None
    assert [dialog.list.item(place).text().split("   ")[1] for place in range(2)] == ["Line", "1 加 1？"]
    dialog.list.setCurrentRow(1)
    click(qtbot, dialog.open_button)
    assert page.system.toPlainText() == "Be brief."
    assert [column.run.currentText() for column in page.columns] == ["chat tuned"] * 2
    assert page.columns[1].checkpoint.currentText().startswith("Base model")
    assert [session.turns[0].prompt for session in page.models.sessions] == ["1 加 1？"] * 2
    generate(controller, qtbot, "2？")
    click(qtbot, page.history)
    qtbot.waitUntil(lambda: len(controller.window.findChildren(HistoryDialog)) == 1)
    dialog = controller.window.findChild(HistoryDialog)
    assert dialog is not None
    assert dialog.list.count() == 2  # the reopened one has grown
    qtbot.keyClick(dialog.list, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    dialog.keep.click()
    click(qtbot, dialog.delete_button)
    assert (dialog.list.count(), session.turns) == (0, [])
    dialog.reject()
    generate(controller, qtbot, "Line")
    assert stored_conversations() == []


def test_an_idle_model_is_unloaded(make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels) -> None:
    write_models("text")
    controller, _ = open_page(make_window, qtbot)
    session = controller.window.chat.models.all_sessions[0]
    generate(controller, qtbot, "Line")
    process = pid(session)
    assert session.idle_timer.isActive()
    session.idle_timer.setInterval(200)  # instead of minutes
    qtbot.waitUntil(lambda: session.process is None, timeout=10_000)
    qtbot.waitUntil(lambda: not psutil.pid_exists(process), timeout=20_000)
    assert len(session.turns) == 1
    generate(controller, qtbot, "Line")
    assert session.turns[-1].status in ("end", "length")


def test_closing_the_window_ends_the_processes(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("text")
    controller, page = open_page(make_window, qtbot)
    page.row.fields["max_tokens"].setValue(LONG)
    click(qtbot, page.compare)
    click(qtbot, page.write)
    sessions = controller.window.chat.models.all_sessions
    qtbot.waitUntil(lambda: all(session.state == "writing" for session in sessions), timeout=60_000)
    processes = [pid(session) for session in sessions]
    controller.window.close()
    qtbot.waitUntil(lambda: not any(map(psutil.pid_exists, processes)), timeout=20_000)


def test_a_start_of_training_unloads_the_model_from_the_only_gpu(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels
) -> None:
    write_models("text")
    controller, page = open_page(make_window, qtbot, mode="echo")
    qtbot.waitUntil(lambda: controller.window.chat.models.machine is not None, timeout=20_000)
    gpu = GpuInfo(0, "NVIDIA GeForce RTX 4090", "GPU-1", 24 * 2**30, (8, 9))
    controller.window.chat.models.set_machine(replace(probe(), gpus=(gpu,)))
    assert page.device_label.text() == "Uses the GPU"
    (session,) = generate(controller, qtbot, "Line")
    assert session.key is not None
    assert session.key[-1] == "auto"
    process = pid(session)
    controller.window.show_page("plots")
    click(qtbot, controller.window.run_bar.start)
    wait_for_state(qtbot, controller, RunState.TRAINING)
    qtbot.waitUntil(lambda: not psutil.pid_exists(process), timeout=20_000)
    controller.window.show_page("chat")
    assert page.device_label.text() == "Uses the CPU: training uses the only GPU"
    generate(controller, qtbot, "Line")
    assert session.key is not None
    assert session.key[-1] == "cpu"


def test_without_a_checkpoint_the_page_explains_what_to_do(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    controller.window.show_page("chat")
    page = controller.window.chat
    note = page.columns[0].transcript.placeholder
    qtbot.waitUntil(lambda: "No checkpoint yet" in note.text())
    assert not page.write.isEnabled()
    qtbot.keyClick(page.prompt, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert not any(session.is_busy for session in controller.window.chat.models.all_sessions)


def test_sampling_options_are_limited(make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels) -> None:
    write_models("text")
    _, page = open_page(make_window, qtbot)
    field = page.row.fields["top_p"]
    for typed, value in (("0", 1.0), ("x", 1.0), ("7", 1.0), ("0.9", 0.9)):
        field.selectAll()
        qtbot.keyClicks(field, typed)
        field.clearFocus()
        assert page.row.sampling["top_p"] == pytest.approx(value), typed
    qtbot.keyClick(field, Qt.Key.Key_Up)
    assert field.text() == "0.95"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_text_is_clipped_in_the_narrowest_window(
    make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels, language: str
) -> None:
    write_models("text")
    controller = make_window(language=language, theme="dark")
    window, page = controller.window, controller.window.chat
    window.resize(895, 560)
    window.show_page("chat")
    qtbot.waitUntil(lambda: page.write.isEnabled(), timeout=10_000)
    click(qtbot, page.compare)
    qtbot.wait(50)
    assert (window.width(), window.height()) == (895, 560)
    for button in page.findChildren(QAbstractButton):
        assert not button.isVisible() or button.width() >= button.sizeHint().width(), button.text()
    for label in page.row.findChildren(QLabel):
        assert label.width() >= label.sizeHint().width(), label.text()
    assert page.columns[0].transcript.height() >= 60


def test_sampling_options_are_restored(make_window: MakeWindow, qtbot: QtBot, write_models: WriteModels) -> None:
    write_models("text")
    controller, page = open_page(make_window, qtbot)
    for name, value in (("temperature", "1.25"), ("top_k", "40"), ("seed", "77")):
        page.row.fields[name].setValue(float(value))
    generate(controller, qtbot, "Line")
    controller.window.close()
    fields = make_window().window.chat.row.fields
    assert {name: field.text() for name, field in fields.items()} == {
        "temperature": "1.25",
        "top_k": "40",
        "top_p": "1",
        "max_tokens": "3",
        "seed": "77",
    }
