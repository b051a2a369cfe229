"""First session of a new user with the real trainer: from the welcome page to a chat with a trained model."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QPushButton
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from app.services import gpu_probe
from tests.gui.conftest import MakeWindow, click, replace_trainer, wait_for_state
from tests.gui.setup_form import drop, mime_data, type_into
from trainer_core.runs.run_dir import list_runs

TYPED_SETTINGS = {
    "hidden_dim": "32",
    "n_layers": "1",
    "max_seq_len": "32",
    "gradient_accumulation_steps": "1",
    "max_steps": "12",
    "save_steps": "6",
    "eval_steps": "6",
}
OTHER_SETTINGS = {"vocab_size": "300", "sample_tokens": "8", "log_steps": "1", "cpu_threads": "1", "warmup_steps": "2"}
SHORT_RUN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from trainer_core.cli import main
if __name__ == "__main__":
    sys.argv += ["--max-steps", "20", "--sample-steps", "20", "--eval-steps", "20", "--cpu-threads", "1"]
    main()
"""


def type_settings(controller: Controller, qtbot: QtBot) -> None:
    """Type the main settings, and set others directly."""
    for field in controller.window.setup.fields:
        if field.knob.name in TYPED_SETTINGS:
            type_into(qtbot, field, TYPED_SETTINGS[field.knob.name])
    for name, value in OTHER_SETTINGS.items():
        controller.form.set_text(name, value)


@pytest.mark.timeout(400)
def test_a_new_user_trains_a_model(make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, home: Path) -> None:
    if gpu_probe.probe().gpus:
        pytest.skip("needs a machine without a GPU")
    text = tmp_path / "我的 文本.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. 春眠不觉晓。\n" * 2000, encoding="utf-8")
    controller = make_window(None)
    window, onboarding = controller.window, controller.window.setup.onboarding
    page = controller.welcome_page
    qtbot.waitUntil(page.use_preset_button.isEnabled, timeout=20_000)

    click(qtbot, page.use_preset_button)
    assert onboarding.hint.text() == "Next: add or drop a file or folder"
    drop(window, mime_data(text))
    qtbot.waitUntil(lambda: window.setup.data.summary.text().startswith("text · 1 file"), timeout=20_000)

    click(qtbot, window.setup.data.preview_button)
    qtbot.waitUntil(lambda: controller.preview_job.running is None, timeout=90_000)
    assert window.data.failure.text() == ""
    assert int(window.data.tiles["documents"].value.text()) > 0

    type_settings(controller, qtbot)
    click(qtbot, onboarding.steps["check"])
    qtbot.waitUntil(lambda: controller.check_job.running is None, timeout=120_000)
    qtbot.waitUntil(lambda: onboarding.hint.text() == "Fits. Next: Start")

    click(qtbot, onboarding.steps["start"])
    assert window.plots.isVisible()
    wait_for_state(qtbot, controller, RunState.FINISHED, 150.0)
    assert not page.isVisible()
    assert len(controller.active_run.record.metrics.series("train_loss")[0]) == 12
    assert controller.active_run.record.samples
    [run] = list_runs(home / "runs")
    assert (run.path / "checkpoints").is_dir()
    assert text.exists()
    assert controller.form.undo_stack.canUndo()  # the typed settings can be undone
    assert onboarding.hint.text() == "Trained. Next: Chat"
    click(qtbot, window.finished_run_bar.buttons["primary"])
    assert window.page == "chat"
    assert window.chat.columns[0].run.currentData() == run.path
    qtbot.waitUntil(window.chat.write.isEnabled, timeout=20_000)
    controller.form.set_text("max_steps", "13")
    assert onboarding.hint.text() == "Next: check whether it fits, or start"


@pytest.mark.timeout(400)
def test_three_visible_buttons_lead_from_the_first_start_to_an_answer_of_an_own_model(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    """The clicks of a new user on a small screen. The run is shortened."""
    controller = make_window(None)
    window, clicks = controller.window, []
    window.resize(900, 430)
    replace_trainer(controller, tmp_path / "trainer.py", SHORT_RUN)

    def press(button: QPushButton) -> None:
        qtbot.waitUntil(lambda: button.visibleRegion().boundingRect() == button.rect())
        click(qtbot, button)
        clicks.append(button.text())

    press(controller.welcome_page.example_button)
    wait_for_state(qtbot, controller, RunState.FINISHED, 150.0)
    press(window.finished_run_bar.buttons["primary"])
    assert window.page == "chat"
    question = window.chat.prompt.toPlainText()
    assert question == controller.active_run.record.samples[-1].prompt
    press(window.chat.write)
    session = window.chat.models.all_sessions[0]
    qtbot.waitUntil(lambda: bool(session.turns) and not window.chat.models.are_busy, timeout=60_000)
    [turn] = session.turns
    assert (turn.prompt, turn.chat) == (question, True)
    assert turn.status in ("end", "length")
    assert session.run == Path(controller.active_run.machine.run_dir)
    assert clicks == ["Train the example", "Chat with it", "Generate"]
