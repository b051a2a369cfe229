"""The Data page with the real trainer behind it."""

from __future__ import annotations

import json
from pathlib import Path

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.theme.palette import LIGHT
from tests.gui.conftest import MakeWindow
from tests.gui.test_gui_data import backgrounds, look

ROWS = [{"instruction": f"{n} 加 {n}？", "input": "", "output": f"等于{2 * n}。"} for n in range(500)]


def test_ones_own_data_is_looked_at_and_looked_at_again_when_it_was_mended(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, own_folders: Path
) -> None:
    data = tmp_path / "问答 alpaca.jsonl"
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    data.write_text("\n".join([*lines[:7], "{broken", *lines[7:], lines[0]]), encoding="utf-8")
    controller = make_window(None)
    page, form = controller.window.data, controller.form
    form.add_data([str(data)])
    form.set_text("vocab_size", "320")
    form.set_text("validation_fraction", "0")
    look(controller, qtbot)
    assert page.failure.text() == ""
    assert page.tiles["documents"].value.text() == "501"
    assert "A tokenizer yet to be trained may count tokens a little differently" in page.status.text()
    assert "line 8" in page.notes.text()
    shown = page.sources.rows
    assert shown.data(shown.index(0, 2)) == "prompt: instruction, input, response: output"
    assert page.samples.text.toPlainText() == (
        "<|im_start|>user↵\n0 加 0？<|im_end|>↵\n<|im_start|>assistant↵\n等于0。<|im_end|>"
    )
    assert backgrounds(controller)["等"] in (LIGHT.loss_token_a, LIGHT.loss_token_b)
    assert backgrounds(controller)["加"] in (LIGHT.context_token_a, LIGHT.context_token_b)
    assert not (own_folders / "cache").exists()
    data.write_text("\n".join(lines), encoding="utf-8")
    look(controller, qtbot)
    assert page.tiles["documents"].value.text() == "500"
    assert not page.notes.isVisible()


def test_a_look_while_training_and_its_cancelling_leave_the_run_alone(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    data = tmp_path / "long.txt"
    data.write_text("".join(f"line {n}: {n * 7919}\n" for n in range(1_500_000)), encoding="utf-8")
    controller = make_window("slow_stop")
    controller.form.add_data([str(data)])
    controller.form.set_text("vocab_size", "8192")
    controller.window.show_page("data")
    qtbot.mouseClick(controller.window.data.look, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(
        lambda: bool(controller.preview_job.running and controller.preview_job.running.progress), timeout=60_000
    )
    qtbot.mouseClick(controller.window.run_bar.start, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: controller.active_run.machine.step > 2, timeout=30_000)
    controller.window.show_page("data")
    qtbot.mouseClick(controller.window.data.cancel, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: controller.preview_job.running is None, timeout=30_000)
    assert controller.window.data.failure.text() == ""
    step = controller.active_run.machine.step
    qtbot.waitUntil(lambda: controller.active_run.machine.step > step, timeout=30_000)


def test_data_that_is_not_there_is_said_in_words(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    controller = make_window(None, "zh")
    controller.form.add_data([str(tmp_path / "没有.txt")])
    look(controller, qtbot)
    assert controller.window.data.failure.text().startswith("数据路径")


def test_the_step_data_tells_the_truth(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    """Fine, gone, back again, being looked at, mixed, not readable, and refused by a run that was started."""
    text, chats, binary = tmp_path / "文本.txt", tmp_path / "chats.jsonl", tmp_path / "picture.txt"
    text.write_text("The quick brown fox.\n" * 900, encoding="utf-8")
    chats.write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    binary.write_bytes(bytes(range(256)) * 20)
    controller = make_window(None)
    form, path = controller.form, controller.window.setup.onboarding
    form.set_text("vocab_size", "300")

    def says(state: str, words: str = "") -> bool:
        return path.steps["data"].accessibleName() == f"Data: {state}" and words in path.hint.text()

    form.add_data([str(text)])
    qtbot.waitUntil(lambda: says("done", "Next: check"), timeout=10_000)
    text.rename(tmp_path / "gone")
    form.set_data([str(text)])
    qtbot.waitUntil(lambda: says("needs correction", "Not found: 文本.txt"), timeout=10_000)
    (tmp_path / "gone").rename(text)
    qtbot.waitUntil(lambda: says("done"), timeout=10_000)

    form.add_data([str(chats)])
    controller.window.show_page("data")
    qtbot.mouseClick(controller.window.data.look, Qt.MouseButton.LeftButton)
    assert says("under way", "Reading the data…")
    qtbot.waitUntil(lambda: says("needs correction", "文本.txt is plain text and chats.jsonl holds"), timeout=60_000)
    assert "holds conversations" in controller.window.data.failure.text()
    form.set_text("batch_size", "3")
    assert says("needs correction", "holds conversations")
    form.set_data([str(binary)])
    assert not says("needs correction")
    assert controller.window.data.failure.text() == ""
    look(controller, qtbot)
    qtbot.waitUntil(lambda: says("needs correction", "looks like a binary file"), timeout=10_000)

    form.set_data([str(text), str(chats)])
    qtbot.waitUntil(lambda: says("done"), timeout=10_000)
    qtbot.mouseClick(controller.window.run_bar.start, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: says("needs correction", "holds conversations"), timeout=90_000)
    form.remove_data([str(chats)])
    qtbot.waitUntil(lambda: says("done"), timeout=10_000)


def test_it_is_said_whether_the_steps_or_the_epochs_end_a_run(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS), encoding="utf-8")
    controller = make_window(None)
    form, says = controller.form, controller.window.setup.length
    assert says.text() == "Ends after 400 steps; the epochs are not used"
    form.set_text("max_steps", "0")
    assert says.text() == "Ends after one pass over the data"
    form.add_data([str(data)])
    for name, text in {"vocab_size": "320", "validation_fraction": "0", "batch_size": "10"}.items():
        form.set_text(name, text)
    look(controller, qtbot)
    assert says.text() == "Ends after one epoch: 50 steps"
    form.set_text("batch_size", "100")
    form.set_text("max_epochs", "3")
    assert says.text() == "Ends after 3 epochs: 15 steps"
    form.set_text("max_steps", "2")
    assert says.text() == "Ends after 2 steps: 0.4 epochs"
    controller.set_language("zh")
    assert says.text() == "训练 2 步后结束，即 0.4 轮"
    form.set_text("max_steps", "x")
    assert says.text() == ""
