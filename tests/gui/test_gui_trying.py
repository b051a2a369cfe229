"""The page “Try it”: texts stream in, alone or side by side; conversations; and no process stays behind.

test_gui_trying_real.py has real models; here they are a program that speaks as they do.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QAbstractButton, QLabel
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from app.pages.playground.page import PlaygroundPage
from app.services.generation_session import GenerationSession
from app.services.trainer_process import TrainerProcess
from tests.gui.conftest import FAKE, MakeWindow, span
from trainer_core.runs import checkpoint_dir
from trainer_core.system.hardware import GpuInfo, probe

LONG = 90_000
Models = Callable[..., Path]


@pytest.fixture
def models(own_folders: Path) -> Models:
    """Makes runs with checkpoints of steps 1 and 2, as far as the window looks at them; the folder of runs."""

    def make(*names: str) -> Path:
        for name in names:
            for step in (1, 2):
                folder = checkpoint(own_folders / "runs", name, step)
                folder.mkdir(parents=True)
                (folder / "weights").write_bytes(b"w")
                checkpoint_dir.write_manifest(folder, step, "regular", 3.5 - step)
            (own_folders / "runs" / name / "config.yaml").write_text("preset: cpu", encoding="utf-8")
        return own_folders / "runs"

    return make


def checkpoint(runs: Path, name: str, step: int) -> Path:
    return runs / name / "checkpoints" / checkpoint_dir.folder_name(step)


def fake(*mode: str) -> Callable[[], TrainerProcess]:
    return lambda: TrainerProcess(command=[sys.executable, "-u", "-X", "utf8", *mode])


WRITER = fake(str(FAKE.with_name("fake_writer.py")))


def opened(
    make_window: MakeWindow,
    qtbot: QtBot,
    name: str = "text",
    make: Callable[[], TrainerProcess] = WRITER,
    mode: str = "ok",
) -> tuple[Controller, PlaygroundPage]:
    """The page, with the newest of a run chosen."""
    controller = make_window(mode)
    for voice in controller.playground_controller.sessions:
        voice.create_process = make
    controller.window.show_page("try")
    page = controller.window.playground
    column = page.columns[0]
    qtbot.waitUntil(lambda: column.run.findText(name) >= 0, timeout=10_000)
    column.run.setCurrentIndex(column.run.findText(name))
    column.run.activated.emit(column.run.currentIndex())
    page.row.fields["max_tokens"].setValue(3)
    return controller, page


def click(qtbot: QtBot, button: QAbstractButton) -> None:
    assert button.isEnabled()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def ask(controller: Controller, qtbot: QtBot, prompt: str) -> list[GenerationSession]:
    """Generate, and wait for the end."""
    page = controller.window.playground
    page.prompt.setPlainText(prompt)
    click(qtbot, page.write)
    voices = controller.playground_controller.visible_sessions
    qtbot.waitUntil(lambda: not any(voice.is_busy for voice in voices), timeout=60_000)
    return voices


def written(voice: GenerationSession) -> str:
    return voice.conversation.turns[-1].text


def said(seed: int, step: int, words: int = 3) -> str:
    """What the model of a step writes."""
    return "".join(f"seed{seed}step{step}word{number + 1} " for number in range(words))


def pid(voice: GenerationSession) -> int:
    assert voice.process is not None
    assert voice.process.pid is not None
    return voice.process.pid


def test_a_text_goes_on_from_its_prompt_and_can_be_copied(
    make_window: MakeWindow, qtbot: QtBot, models: Models
) -> None:
    models("text")
    controller, page = opened(make_window, qtbot)
    page.row.fields["seed"].setValue(5)
    (voice,) = ask(controller, qtbot, "Line 第")
    assert written(voice) == said(5, 2)
    assert page.columns[0].transcript.toPlainText().splitlines() == [
        "Step 2, seed 5",
        "Line 第" + said(5, 2),
        "… the set length is reached",
    ]
    assert page.columns[0].status.text() == "3 tokens, 3 tokens/s · CPU (1 thread)"
    assert page.prompt.toPlainText() == "Line 第"  # to go on changing it
    click(qtbot, page.columns[0].copy)
    assert QGuiApplication.clipboard().text() == "Line 第" + said(5, 2)


@pytest.mark.parametrize("name", ["text", "chat"])
def test_code_keeps_its_shape(make_window: MakeWindow, qtbot: QtBot, models: Models, name: str) -> None:
    models(name)
    controller, page = opened(make_window, qtbot, name)
    code = "def f():\n    iiii\n\tMMMM"
    ask(controller, qtbot, code)
    page.prompt.setPlainText(code)  # a question was sent: the box is empty
    for edit in (page.columns[0].transcript, page.prompt):
        assert span(edit, "iiii") == span(edit, "MMMM")
        assert span(edit, "iiii")[0] == span(edit, "f():")[0]


def test_the_same_process_writes_again_and_regenerate_takes_another_seed(
    make_window: MakeWindow, qtbot: QtBot, models: Models
) -> None:
    models("text")
    controller, page = opened(make_window, qtbot)
    (voice,) = ask(controller, qtbot, "Line")
    first, process = written(voice), pid(voice)
    (voice,) = ask(controller, qtbot, "Line")
    assert written(voice) == first
    click(qtbot, page.again)
    qtbot.waitUntil(lambda: not voice.is_busy, timeout=60_000)
    assert len(voice.conversation.turns) == 2  # it took the place of the last
    assert page.row.fields["seed"].text() == str(voice.conversation.turns[-1].sampling.seed) != "0"
    assert written(voice) != first
    assert pid(voice) == process


def test_two_checkpoints_write_side_by_side_with_one_prompt_and_seed(
    make_window: MakeWindow, qtbot: QtBot, models: Models
) -> None:
    models("text")
    controller, page = opened(make_window, qtbot)
    click(qtbot, page.compare)
    assert page.columns[1].isVisible()
    page.row.fields["seed"].setValue(8)
    first, second = ask(controller, qtbot, "Line 1")
    assert (written(first), written(second)) == (said(8, 2), said(8, 1))
    other = pid(second)
    click(qtbot, page.compare)
    assert not page.columns[1].isVisible()
    qtbot.waitUntil(lambda: not psutil.pid_exists(other), timeout=20_000)


def test_ctrl_enter_writes_and_esc_stops_and_what_was_written_stays(
    make_window: MakeWindow, qtbot: QtBot, models: Models
) -> None:
    models("text")
    controller, page = opened(make_window, qtbot)
    page.row.fields["max_tokens"].setValue(LONG)
    controller.window.activateWindow()
    page.prompt.setFocus()
    qtbot.keyClicks(page.prompt, "Line")
    qtbot.keyClick(page.prompt, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    (voice,) = controller.playground_controller.visible_sessions
    qtbot.waitUntil(lambda: voice.is_busy and len(written(voice)) > 20, timeout=60_000)
    assert page.stop.isVisible()
    assert not page.write.isVisible()
    process = pid(voice)
    qtbot.keyClick(page.prompt, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: not voice.is_busy, timeout=20_000)
    assert voice.conversation.turns[-1].status == "interrupted"
    assert page.columns[0].transcript.toPlainText().endswith("\nstopped")
    assert page.write.isVisible()
    assert controller.active_run.machine.state is RunState.IDLE  # elsewhere in the window these keys start a run
    page.row.fields["max_tokens"].setValue(3)
    ask(controller, qtbot, "Line")
    assert pid(voice) == process


def test_stop_pressed_again_ends_a_process_that_does_not_listen(
    make_window: MakeWindow, qtbot: QtBot, models: Models
) -> None:
    models("text")
    controller, page = opened(make_window, qtbot)
    page.row.fields["max_tokens"].setValue(LONG)
    page.prompt.setPlainText("deaf")
    click(qtbot, page.write)
    (voice,) = controller.playground_controller.visible_sessions
    qtbot.waitUntil(lambda: voice.is_busy and len(written(voice)) > 20, timeout=60_000)
    process = pid(voice)
    click(qtbot, page.stop)
    before = len(written(voice))
    qtbot.waitUntil(lambda: len(written(voice)) > before, timeout=20_000)
    click(qtbot, page.stop)
    assert not voice.is_busy
    assert voice.conversation.turns[-1].status == "interrupted"
    assert len(written(voice)) > 20
    qtbot.waitUntil(lambda: not psutil.pid_exists(process), timeout=20_000)


def test_keys_write_again_and_begin_anew_and_are_listed(make_window: MakeWindow, qtbot: QtBot, models: Models) -> None:
    models("text")
    controller, page = opened(make_window, qtbot)
    (voice,) = ask(controller, qtbot, "Line")
    controller.window.activateWindow()
    page.prompt.setFocus()
    qtbot.keyClick(page.prompt, Qt.Key.Key_R, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: not voice.is_busy and voice.conversation.turns[-1].sampling.seed > 0, timeout=20_000)
    qtbot.keyClick(page.prompt, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert voice.conversation.turns == []
    assert page.prompt.toPlainText() == ""
    listed = [action.text() for title, action in controller.window.table_shortcuts() if title == "Try it"]
    assert listed == ["Generate", "Stop", "Regenerate", "New conversation"]


def test_a_conversation_has_turns_and_begins_anew(make_window: MakeWindow, qtbot: QtBot, models: Models) -> None:
    models("chat")
    controller, page = opened(make_window, qtbot, "chat")
    (voice,) = ask(controller, qtbot, "1 加 1？")
    assert page.prompt.toPlainText() == ""  # the next question
    ask(controller, qtbot, "和 2？")
    one, two = voice.conversation.turns
    assert two.chat
    assert two.prompt_tokens == len("1 加 1？" + one.text + "和 2？")  # it was given what was said before
    shown = page.columns[0].transcript.toPlainText()
    assert shown.index("1 加 1？") < shown.index("和 2？")
    click(qtbot, page.new)
    assert page.columns[0].transcript.note.isVisible()
    ask(controller, qtbot, "1 加 1？")
    assert voice.conversation.turns[-1].prompt_tokens == one.prompt_tokens
    click(qtbot, page.columns[0].copy)
    assert QGuiApplication.clipboard().text() == written(voice)  # the answer alone


def test_the_newest_follows_its_run_and_says_so(make_window: MakeWindow, qtbot: QtBot, models: Models) -> None:
    runs = models("text")
    newer, kept = checkpoint(runs, "text", 2), runs.parent / "kept"
    newer.rename(kept)
    controller, page = opened(make_window, qtbot)
    (voice,) = ask(controller, qtbot, "Line")
    assert voice.conversation.turns[-1].step == 1
    kept.rename(newer)
    controller.playground_controller.on_runs_listed()
    assert page.columns[0].status.text() == "Step 2 is there now: the next text is written by it"
    assert page.columns[0].checkpoint.currentText().startswith("Newest: Step 2")
    ask(controller, qtbot, "Line")
    assert voice.conversation.turns[-1].step == 2


def test_a_checkpoint_that_is_rotated_away_writes_on_until_another_is_chosen(
    make_window: MakeWindow, qtbot: QtBot, models: Models
) -> None:
    runs = models("text")
    older = checkpoint(runs, "text", 1)
    controller, page = opened(make_window, qtbot)
    controller.playground_controller.select_checkpoint(older)
    (voice,) = ask(controller, qtbot, "Line")
    before = written(voice)
    shutil.rmtree(older)
    controller.playground_controller.on_runs_listed()
    ask(controller, qtbot, "Line")
    assert written(voice) == before
    assert page.columns[0].status.text().startswith("No longer on disk")
    voice.unload()
    assert not page.write.isEnabled()
    assert page.columns[0].status.text().startswith("This checkpoint is no longer on disk")
    column = page.columns[0]
    column.checkpoint.setCurrentIndex(0)
    column.checkpoint.activated.emit(0)
    ask(controller, qtbot, "Line")
    assert voice.conversation.turns[-1].step == 2


def test_a_model_that_cannot_be_loaded_is_told_and_another_can_be_tried(
    make_window: MakeWindow, qtbot: QtBot, models: Models
) -> None:
    runs = models("text")
    controller, page = opened(make_window, qtbot, make=fake(str(FAKE), "error"))
    (voice,) = ask(controller, qtbot, "Line")
    assert "does not exist" in page.columns[0].status.text()
    assert page.columns[0].status.property("level") == "bad"
    assert voice.conversation.turns[-1].status == "failed"
    voice.create_process = WRITER
    controller.playground_controller.select_checkpoint(checkpoint(runs, "text", 1))
    assert page.columns[0].status.text() == ""
    ask(controller, qtbot, "Line")
    assert written(voice) == said(0, 1)


def test_a_text_that_is_refused_says_why_and_the_next_is_written(
    make_window: MakeWindow, qtbot: QtBot, models: Models
) -> None:
    models("chat")
    controller, page = opened(make_window, qtbot, "chat")
    (voice,) = ask(controller, qtbot, "refuse this")
    assert "does not fit the chat template" in page.columns[0].transcript.toPlainText()
    ask(controller, qtbot, "and this?")
    assert written(voice) == said(0, 2)
    assert voice.conversation.turns[-1].prompt_tokens == len("and this?")  # what failed is no part of the conversation


def test_a_model_that_nobody_uses_goes(make_window: MakeWindow, qtbot: QtBot, models: Models) -> None:
    models("text")
    controller, _ = opened(make_window, qtbot)
    voice = controller.playground_controller.sessions[0]
    ask(controller, qtbot, "Line")
    process = pid(voice)
    assert voice.idle_timer.isActive()
    voice.idle_timer.setInterval(200)  # instead of minutes
    qtbot.waitUntil(lambda: voice.process is None, timeout=10_000)
    qtbot.waitUntil(lambda: not psutil.pid_exists(process), timeout=20_000)
    assert len(voice.conversation.turns) == 1  # what was written stays
    ask(controller, qtbot, "Line")
    assert voice.conversation.turns[-1].status in ("end", "length")


def test_closing_the_window_leaves_no_process(make_window: MakeWindow, qtbot: QtBot, models: Models) -> None:
    models("text")
    controller, page = opened(make_window, qtbot)
    page.row.fields["max_tokens"].setValue(LONG)
    click(qtbot, page.compare)
    click(qtbot, page.write)
    voices = controller.playground_controller.sessions
    qtbot.waitUntil(lambda: all(voice.state == "writing" for voice in voices), timeout=60_000)
    processes = [pid(voice) for voice in voices]
    controller.window.close()
    qtbot.waitUntil(lambda: not any(map(psutil.pid_exists, processes)), timeout=20_000)


def test_training_has_the_only_gpu_and_a_model_that_is_loaded_there_goes(
    make_window: MakeWindow, qtbot: QtBot, models: Models
) -> None:
    models("text")
    controller, page = opened(make_window, qtbot, mode="echo")
    qtbot.waitUntil(lambda: controller.playground_controller.machine is not None, timeout=20_000)
    gpu = GpuInfo(0, "NVIDIA GeForce RTX 4090", "GPU-1", 24 * 2**30, (8, 9))
    controller.playground_controller.set_machine(replace(probe(), gpus=(gpu,)))
    assert page.device_label.text() == "On the GPU"
    (voice,) = ask(controller, qtbot, "Line")
    assert voice.key is not None
    assert voice.key[1] == "auto"
    process = pid(voice)
    controller.window.show_page("plots")
    click(qtbot, controller.window.run_bar.start)
    qtbot.waitUntil(lambda: controller.active_run.machine.state is RunState.TRAINING, timeout=20_000)
    qtbot.waitUntil(lambda: not psutil.pid_exists(process), timeout=20_000)
    controller.window.show_page("try")
    assert page.device_label.text() == "On the CPU: training has the only GPU"
    ask(controller, qtbot, "Line")
    assert voice.key is not None
    assert voice.key[1] == "cpu"
    page.device.setCurrentIndex(page.device.findData("cuda:0"))  # whoever wants it all the same
    page.device.activated.emit(page.device.currentIndex())
    ask(controller, qtbot, "Line")
    assert voice.key is not None
    assert voice.key[1] == "cuda:0"


def test_without_a_checkpoint_the_page_says_what_to_do(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    controller.window.show_page("try")
    page = controller.window.playground
    note = page.columns[0].transcript.note
    qtbot.waitUntil(lambda: "No checkpoint to try yet" in note.text())
    assert not page.write.isEnabled()
    qtbot.keyClick(page.prompt, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert not any(voice.is_busy for voice in controller.playground_controller.sessions)


def test_sampling_options_stay_within_their_limits(make_window: MakeWindow, qtbot: QtBot, models: Models) -> None:
    models("text")
    _, page = opened(make_window, qtbot)
    field = page.row.fields["top_p"]
    for typed, value in (("0", 1.0), ("x", 1.0), ("7", 1.0), ("0.9", 0.9)):
        field.selectAll()
        qtbot.keyClicks(field, typed)
        field.clearFocus()
        assert page.row.sampling.top_p == pytest.approx(value), typed
    qtbot.keyClick(field, Qt.Key.Key_Up)
    assert field.text() == "0.95"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_is_cut_in_the_narrowest_window(
    make_window: MakeWindow, qtbot: QtBot, models: Models, language: str
) -> None:
    models("text")
    controller = make_window(language=language, theme="dark")
    window, page = controller.window, controller.window.playground
    window.resize(860, 560)
    window.show_page("try")
    qtbot.waitUntil(lambda: page.write.isEnabled(), timeout=10_000)
    click(qtbot, page.compare)
    qtbot.wait(50)
    assert (window.width(), window.height()) == (860, 560)
    for button in page.findChildren(QAbstractButton):
        assert not button.isVisible() or button.width() >= button.sizeHint().width(), button.text()
    for label in page.row.findChildren(QLabel):
        assert label.width() >= label.sizeHint().width(), label.text()
    assert page.columns[0].transcript.height() >= 60


def test_how_texts_are_drawn_is_remembered(make_window: MakeWindow, qtbot: QtBot, models: Models) -> None:
    models("text")
    controller, page = opened(make_window, qtbot)
    for name, value in (("temperature", "1.25"), ("top_k", "40"), ("seed", "77")):
        page.row.fields[name].setValue(float(value))
    ask(controller, qtbot, "Line")
    controller.window.close()
    fields = make_window().window.playground.row.fields
    assert {name: field.text() for name, field in fields.items()} == {
        "temperature": "1.25",
        "top_k": "40",
        "top_p": "1",
        "max_tokens": "3",
        "seed": "77",
    }
