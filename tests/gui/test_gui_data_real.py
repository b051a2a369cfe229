"""The Data page with the real trainer."""

from __future__ import annotations

import json
from pathlib import Path

from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.theme.palette import LIGHT
from tests.gui.conftest import MakeWindow, click
from tests.gui.test_gui_data import backgrounds, run_preview

ROWS = [{"instruction": f"{n} 加 {n}？", "input": "", "output": f"等于{2 * n}。"} for n in range(500)]


def test_a_corrected_file_is_previewed_again(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, home: Path) -> None:
    data = tmp_path / "问答 alpaca.jsonl"
    lines = [json.dumps(row, ensure_ascii=False) for row in ROWS]
    data.write_text("\n".join([*lines[:7], "{broken", *lines[7:], lines[0]]), encoding="utf-8")
    controller = make_window(None)
    page, form = controller.window.data, controller.form
    form.add_data([str(data)])
    form.set_text("vocab_size", "320")
    form.set_text("validation_fraction", "0")
    run_preview(controller, qtbot)
    assert page.failure.text() == ""
    assert page.tiles["documents"].value.text() == "501"
    assert "Token counts can change slightly once the tokenizer is trained" in page.status.text()
    assert "line 8" in page.warnings.text()
    assert page.sources.item(0, 2).text() == "prompt: instruction, input, response: output"
    assert page.samples.text.toPlainText() == (
        "<|im_start|>user↵\n0 加 0？<|im_end|>↵\n<|im_start|>assistant↵\n等于0。<|im_end|>"
    )
    assert backgrounds(controller)["等"] in (LIGHT.loss_token_a, LIGHT.loss_token_b)
    assert backgrounds(controller)["加"] in (LIGHT.context_token_a, LIGHT.context_token_b)
    assert not (home / "cache").exists()
    data.write_text("\n".join(lines), encoding="utf-8")
    run_preview(controller, qtbot)
    assert page.tiles["documents"].value.text() == "500"
    assert not page.warnings.isVisible()


def test_a_cancelled_preview_does_not_affect_training(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    data = tmp_path / "long.txt"
    data.write_text("".join(f"line {n}: {n * 7919}\n" for n in range(1_500_000)), encoding="utf-8")
    controller = make_window("slow_stop")
    controller.form.add_data([str(data)])
    controller.form.set_text("vocab_size", "8192")
    controller.window.show_page("data")
    click(qtbot, controller.window.data.preview_button)
    qtbot.waitUntil(
        lambda: bool(controller.preview_job.running and controller.preview_job.running.progress), timeout=60_000
    )
    click(qtbot, controller.window.run_bar.start)
    qtbot.waitUntil(lambda: controller.active_run.machine.step > 2, timeout=30_000)
    controller.window.show_page("data")
    click(qtbot, controller.window.data.cancel_button)
    qtbot.waitUntil(lambda: controller.preview_job.running is None, timeout=30_000)
    assert controller.window.data.failure.text() == ""
    step = controller.active_run.machine.step
    qtbot.waitUntil(lambda: controller.active_run.machine.step > step, timeout=30_000)


def test_missing_data_is_reported_in_chinese(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path) -> None:
    controller = make_window(None, "zh")
    controller.form.add_data([str(tmp_path / "没有.txt")])
    run_preview(controller, qtbot)
    assert controller.window.data.failure.text().startswith("数据路径")


def test_the_onboarding_step_follows_the_state_of_the_data(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    """Valid, missing, previewed, mixed, binary, and rejected by a started run."""
    text, chats, binary = tmp_path / "文本.txt", tmp_path / "chats.jsonl", tmp_path / "picture.txt"
    text.write_text("The quick brown fox.\n" * 900, encoding="utf-8")
    chats.write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    binary.write_bytes(bytes(range(256)) * 20)
    controller = make_window(None)
    form, onboarding = controller.form, controller.window.setup.onboarding
    form.set_text("vocab_size", "300")

    def step_is(state: str, hint: str = "") -> bool:
        return onboarding.steps["data"].accessibleName() == f"Data: {state}" and hint in onboarding.hint.text()

    form.add_data([str(text)])
    qtbot.waitUntil(lambda: step_is("done", "Next: check"), timeout=10_000)
    text.rename(tmp_path / "missing")
    controller.setup_controller._on_application_state(Qt.ApplicationState.ApplicationActive)
    qtbot.waitUntil(lambda: step_is("needs attention", "Not found: "), timeout=10_000)
    (tmp_path / "missing").rename(text)
    qtbot.waitUntil(lambda: step_is("done"), timeout=10_000)

    form.add_data([str(chats)])
    controller.window.show_page("data")
    click(qtbot, controller.window.data.preview_button)
    assert step_is("next", "Previewing data…")
    qtbot.waitUntil(lambda: step_is("needs attention", "contains conversations"), timeout=60_000)
    assert "contains conversations" in controller.window.data.failure.text()
    form.set_text("batch_size", "3")
    assert step_is("needs attention", "contains conversations")
    form.set_data([str(binary)])
    assert not step_is("needs attention")
    assert controller.window.data.failure.text() == ""
    run_preview(controller, qtbot)
    qtbot.waitUntil(lambda: step_is("needs attention", "looks like a binary file"), timeout=10_000)

    form.set_data([str(text)])
    qtbot.waitUntil(lambda: step_is("done"), timeout=10_000)


def test_the_run_length_states_whether_steps_or_epochs_end_the_run(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS), encoding="utf-8")
    controller = make_window(None)
    form, length = controller.form, controller.window.setup.length
    assert length.text() == "Ends after 400 steps; epochs are ignored"
    form.set_text("max_steps", "0")
    assert length.text() == "Ends after 1 epoch"
    form.add_data([str(data)])
    for name, text in {"vocab_size": "320", "validation_fraction": "0", "batch_size": "10"}.items():
        form.set_text(name, text)
    run_preview(controller, qtbot)
    assert length.text() == "Ends after 1 epoch: about 50 steps"
    form.set_text("batch_size", "100")
    form.set_text("max_epochs", "3")
    assert length.text() == "Ends after 3 epochs: about 15 steps"
    form.set_text("max_steps", "2")
    assert length.text() == "Ends after 2 steps: about 0.4 epochs"
    controller.set_language("zh")
    assert length.text() == "训练 2 步后结束，约 0.4 轮"
    form.set_text("max_steps", "x")
    assert length.text() == ""
