"""Chat page with real models."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from tests.core.trainer_process import TINY, run, text_file
from tests.gui.conftest import MakeWindow, click
from trainer_core import protocol

TRAINING_FLAGS = (
    *TINY, "--max-steps", "2", "--eval-steps", "0", "--sample-steps", "0", "--save-steps", "1", "--keep-last", "3",
    "--warmup-steps", "0", "--learning-rate", "0.05",
)  # fmt: skip


def question_file(folder: Path) -> Path:
    rows = ({"prompt": f"{n} 加 1？", "response": f"{n + 1}。"} for n in range(200))
    path = folder / "问答.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def train(home: Path, data: Path, name: str, *flags: str) -> None:
    target = str(home / "runs" / name)
    result = run(home, "train", *TRAINING_FLAGS, "--data", str(data), "--run-dir", target, *flags)
    assert result.code == 0, result.stderr


def test_two_checkpoints_generate_the_same_texts_as_the_command_line(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, home: Path
) -> None:
    home.mkdir()
    train(home, text_file(tmp_path), "文本 run")
    controller = make_window()
    controller.window.show_page("chat")
    page, sessions = controller.window.chat, controller.window.chat.models.all_sessions
    qtbot.waitUntil(lambda: page.columns[0].checkpoint.currentText().startswith("Newest: Step 2"), timeout=20_000)
    click(qtbot, page.compare)
    page.row.fields["max_tokens"].setValue(40)
    page.row.fields["seed"].setValue(5)
    page.prompt.setPlainText("Line 第")
    click(qtbot, page.write)
    qtbot.waitUntil(lambda: not any(session.is_busy for session in sessions), timeout=120_000)
    texts = [session.turns[-1].text for session in sessions]
    assert texts[0] != texts[1]
    older = home / "runs" / "文本 run" / "checkpoints" / "step-00000001"
    flags = ("--max-tokens", "40", "--seed", "5", "--device", "cpu", "--output", "json")
    result = run(home, "generate", str(older), "--prompt", "Line 第", *flags)
    assert texts[1] == "".join(event.piece for event in result.events_of(protocol.GeneratedPiece))

    page.row.fields["max_tokens"].setValue(90000)
    page.row.fields["temperature"].setValue(0)  # greedy decoding does not end by chance
    click(qtbot, page.write)
    qtbot.waitUntil(lambda: all(session.turns[-1].text for session in sessions), timeout=60_000)
    qtbot.keyClick(page.prompt, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: not any(session.is_busy for session in sessions), timeout=20_000)
    assert [session.turns[-1].status for session in sessions] == ["interrupted", "interrupted"]

    processes = [session.process.pid for session in sessions if session.process is not None]
    assert len(processes) == 2
    controller.window.close()
    qtbot.waitUntil(lambda: not any(psutil.pid_exists(pid or 0) for pid in processes), timeout=20_000)


def test_a_tuned_model_answers_beside_its_base_model(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, home: Path
) -> None:
    home.mkdir()
    train(home, question_file(tmp_path), "base")
    train(home, question_file(tmp_path), "调优 tuned", "--base-model", str(home / "runs" / "base"))
    controller = make_window()
    controller.window.show_page("chat")
    page, sessions = controller.window.chat, controller.window.chat.models.all_sessions
    sessions[0].select(home / "runs" / "调优 tuned")
    qtbot.waitUntil(page.write.isEnabled, timeout=20_000)
    click(qtbot, page.compare)
    page.row.fields["max_tokens"].setValue(12)
    page.system.setPlainText("简短回答。")
    page.prompt.setPlainText("1 加 1？")
    click(qtbot, page.write)
    qtbot.waitUntil(lambda: not page.models.are_busy, timeout=120_000)
    tuned, base = (session.turns[-1] for session in sessions)
    assert tuned.chat
    assert base.chat
    assert tuned.text != base.text
    assert "differs from the other column" in page.columns[1].transcript.toPlainText()
    assert tuned.prompt_tokens == base.prompt_tokens > len("简短回答。1 加 1？")


def test_a_chat_model_gets_the_previous_turns(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, home: Path
) -> None:
    home.mkdir()
    train(home, question_file(tmp_path), "chat")
    controller = make_window()
    controller.window.show_page("chat")
    page, session = controller.window.chat, controller.window.chat.models.all_sessions[0]
    qtbot.waitUntil(page.write.isEnabled, timeout=20_000)
    page.row.fields["max_tokens"].setValue(4)
    for question in ("1 加 1？", "和 2？"):
        page.prompt.setPlainText(question)
        click(qtbot, page.write)
        qtbot.waitUntil(lambda: not session.is_busy, timeout=120_000)
        assert page.prompt.toPlainText() == ""
    first, second = session.turns
    assert first.chat
    assert second.prompt_tokens > first.prompt_tokens
